// What launcher and ranks of a host share: in memory that all of them map, so that a rank that is
// stuck, stopped or gone can still be told of and told to stop.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "base/file.h"
#include "base/wait.h"

namespace tutti {

struct Control {
  Cancel cancel;
  std::atomic<uint32_t> stop{0};    ///< Ctrl-C and its like: finish the step, save, end
  std::atomic<uint32_t> heeded{0};  ///< rank 0 ended because of it, with something left to do
  char result[256] = {};            ///< what rank 0 hands back to the launcher
  int32_t size = 0;                 ///< ranks that were started, or are about to be

  struct Rank {
    std::atomic<uint64_t> beats{0};  ///< counts its heartbeats
    std::atomic<uint64_t> signs{0};  ///< counts the beats before which its process did some work
    /// its first step has begun: there will be something to save
    std::atomic<uint32_t> begun{0};
    std::atomic<uint32_t> asked{0};     ///< it was sent a SIGTERM
    std::atomic<uint32_t> done{0};      ///< left its function: silence is no longer a fault
    std::atomic<int64_t> failed_at{0};  ///< steady-clock nanoseconds; 0: it has not
    char message[1024] = {};            ///< what its function threw
  };
  /// The ranks' parts are stored after this struct, in the same memory.
  std::span<Rank> ranks() { return {reinterpret_cast<Rank*>(this + 1), static_cast<size_t>(size)}; }
  /// Signs of work of all ranks together.
  uint64_t signs();
};
static_assert(sizeof(Control) % alignof(Control::Rank) == 0);

/// A control block and who keeps its memory.
class SharedControl {
 public:
  /// A new one, all of its counters zero.
  explicit SharedControl(int ranks);
  /// The control block of another process, by the descriptor that it sent.
  explicit SharedControl(Fd memory);
  ~SharedControl();
  SharedControl(const SharedControl&) = delete;
  SharedControl& operator=(const SharedControl&) = delete;

  Control& operator*() const { return *control_; }
  Control* operator->() const { return control_; }
  int fd() const { return memory_.get(); }

 private:
  void map(size_t bytes);
  Fd memory_;
  size_t bytes_ = 0;
  Control* control_ = nullptr;
};

}  // namespace tutti
