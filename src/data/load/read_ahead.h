// A thread that fills items ahead of their use, on which every loader of data is built.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>

#include "base/wait.h"

namespace tutti {

/// Calls fill(0), fill(1), ... on a thread of its own, never more than `ahead` items past what was
/// released. One other thread calls await and release. The destructor joins the thread.
class ReadAhead {
 public:
  ReadAhead(int64_t ahead, std::function<void(int64_t item)> fill, Clock& clock,
            const Cancel* cancel);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Blocks until fill(item) has returned, or rethrows what this or an earlier item threw. Throws
  /// Error, naming the step, if the run is cancelled.
  void await(int64_t item, int64_t step);
  /// Tells that items below `count` are used no more.
  void release(int64_t count);
  /// Time that await spent waiting, in all.
  Duration stalled() const { return Duration(stalled_.load()); }

 private:
  void run();

  const int64_t ahead_;
  const std::function<void(int64_t)> fill_;
  Clock& clock_;
  const Cancel* const cancel_;
  std::atomic<int64_t> filled_{0};    // written by the thread
  std::atomic<int64_t> released_{0};  // written by release()
  std::atomic<bool> stopping_{false}, failed_{false};
  std::exception_ptr error_;  // published by failed_
  Signal ready_, emptied_;
  std::atomic<int64_t> stalled_{0};
  std::thread thread_;
};

}  // namespace tutti
