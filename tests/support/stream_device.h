// A Device on the host's memory whose streams really run alongside each other: all but the first
// one made, which is compute and runs on the calling thread, are threads. What a plan forgets to
// wait for is then read too early, and what would wait for ever on a GPU does so here (and is an
// Error after a while).
//
// Its library's kernels and groups put their work on these streams; two operations of one group
// never overtake each other, as NCCL's do not.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/fp_mode.h"
#include "support/host_library.h"

namespace tutti::testing_support {

inline constexpr std::chrono::seconds kStreamPatience{30};

/// A queue of work; without a thread it runs at once.
class StreamWork {
 public:
  StreamWork(bool threaded, std::function<void(const std::string&)> fail) : fail_(std::move(fail)) {
    if (threaded) thread_ = std::thread([this] { run(); });
  }
  ~StreamWork() {
    {
      std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  void put(std::function<void()> work) {
    if (!thread_.joinable()) return work();
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }
  void drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_.empty() && !busy_; });
  }

 private:
  void run() {
    set_fp_mode();
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ends_ || !work_.empty(); });
      if (ends_) return;
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      busy_ = true;
      lock.unlock();
      try {
        work();
      } catch (const std::exception& e) {
        fail_(e.what());
      }
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }
  std::function<void(const std::string&)> fail_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false, ends_ = false;
  std::thread thread_;
};

inline void put_on(Stream stream, std::function<void()> work) {
  static_cast<StreamWork*>(stream.handle)->put(std::move(work));
}

class StreamDevice : public Device {
 public:
  const DeviceInfo& info() const override { return host_.info(); }
  int64_t free_bytes() const override { return host_.free_bytes(); }
  std::span<std::byte> take(BufferKind kind, size_t bytes) override {
    return host_.take(kind, bytes);
  }
  void give_back(std::span<std::byte> memory) override { host_.give_back(memory); }
  std::span<std::byte> take_pinned(size_t bytes) override { return host_.take_pinned(bytes); }
  void give_back_pinned(std::span<std::byte> memory) override { host_.give_back_pinned(memory); }

  Stream make_stream() override {
    std::lock_guard lock(mutex_);
    const bool first = streams_.empty();
    return {streams_
                .emplace_back(
                    std::make_unique<StreamWork>(!first, [this](const auto& what) { fail(what); }))
                .get()};
  }
  void copy(Stream stream, void* to, const void* from, size_t bytes) override {
    put_on(stream, [=] { std::memmove(to, from, bytes); });
  }
  void zero(Stream stream, void* memory, size_t bytes) override {
    put_on(stream, [=] { std::memset(memory, 0, bytes); });
  }
  void make_current(Stream) override {}

  StreamEvent make_event(bool) override {
    std::lock_guard lock(mutex_);
    return {events_.emplace_back(std::make_unique<Event>()).get()};
  }
  void record(StreamEvent event, Stream stream) override {
    auto* e = static_cast<Event*>(event.handle);
    std::unique_lock lock(mutex_);
    const int64_t turn = ++e->recorded;
    lock.unlock();
    put_on(stream, [this, e, turn] {
      std::lock_guard lock(mutex_);
      e->done = turn;
      e->at = std::chrono::steady_clock::now();
      changed_.notify_all();
    });
  }
  void wait(Stream stream, StreamEvent event, bool) override {
    auto* e = static_cast<Event*>(event.handle);
    std::unique_lock lock(mutex_);
    const int64_t turn = e->recorded;
    lock.unlock();
    put_on(stream, [this, e, turn] {
      std::unique_lock lock(mutex_);
      const bool came = changed_.wait_for(lock, kStreamPatience,
                                          [&] { return e->done >= turn || !failure_.empty(); });
      if (!failure_.empty()) throw Error(failure_);
      if (!came) throw Error("a stream waits for an event that does not come");
    });
  }
  bool done(StreamEvent event) const override {
    const auto* e = static_cast<const Event*>(event.handle);
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) throw Error(failure_);
    return e->done == e->recorded;
  }
  double seconds(StreamEvent from, StreamEvent to) const override {
    const auto at = [](StreamEvent e) { return static_cast<Event*>(e.handle)->at; };
    return std::chrono::duration<double>(at(to) - at(from)).count();
  }
  void synchronise(Stream stream) override { static_cast<StreamWork*>(stream.handle)->drain(); }

  bool captures() const override { return false; }
  void begin_capture(Stream) override {}
  CapturedStep end_capture(Stream) override { return {}; }
  void launch(const CapturedStep&, Stream) override {}
  void destroy(CapturedStep) override {}
  void reserve_pool(int64_t bytes) override { host_.reserve_pool(bytes); }
  PoolUse pool() const override { return host_.pool(); }
  void reset_pool_peak() override {}

  int64_t takes() const { return host_.takes(); }
  int64_t held_bytes() const { return host_.held_bytes(); }

 private:
  struct Event {
    int64_t recorded = 0, done = 0;
    std::chrono::steady_clock::time_point at{};
  };
  void fail(const std::string& what) {
    std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = what;
    changed_.notify_all();
  }
  HostDevice host_{int64_t{1} << 40};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string failure_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<std::unique_ptr<StreamWork>> streams_;  // last: their work uses all of the above
};

class StreamGroup final : public DeviceGroup {
 public:
  explicit StreamGroup(std::unique_ptr<DeviceGroup> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void exchange(Stream stream, std::span<const DeviceSend> sends,
                std::span<const DeviceReceive> receives) override {
    put(stream,
        [this, stream, s = std::vector(sends.begin(), sends.end()),
         r = std::vector(receives.begin(), receives.end())] { inner_->exchange(stream, s, r); });
  }
  void sum(Stream stream, double* values, int64_t n) override {
    put(stream, [=, this] { inner_->sum(stream, values, n); });
  }
  void sum(Stream stream, float* values, int64_t n) override {
    put(stream, [=, this] { inner_->sum(stream, values, n); });
  }
  std::string fault() override { return ""; }
  void abort() override {}

 private:
  void put(Stream stream, std::function<void()> work) {
    const int64_t turn = issued_++;
    put_on(stream, [this, turn, work = std::move(work)] {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_for(lock, kStreamPatience, [&] { return ended_ == turn; }))
        throw Error("an operation of a group does not end before the next");
      lock.unlock();
      work();
      lock.lock();
      ++ended_;
      changed_.notify_all();
    });
  }
  std::unique_ptr<DeviceGroup> inner_;
  int64_t issued_ = 0, ended_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// host_library() on such streams.
inline const DeviceLibrary& stream_library() {
  static const DeviceLibrary library = [] {
    DeviceLibrary l = host_library();
    l.open = [](int) -> std::unique_ptr<Device> { return std::make_unique<StreamDevice>(); };
    l.state.fold = [](Stream stream, float* out, std::span<const float* const> terms,
                      std::span<const FoldStep> order, int64_t n) {
      put_on(stream, [out, n, t = std::vector(terms.begin(), terms.end()),
                      o = std::vector(order.begin(), order.end())] { fold(out, t, o, n); });
    };
    l.state.add_into = [](Stream stream, float* a, const float* b, int64_t n) {
      put_on(stream, [=] { host_library().state.add_into(Stream{}, a, b, n); });
    };
    l.state.chunk_squares = [](Stream stream, const float* x, const StateChunk* chunks,
                               int64_t count, double* votes) {
      put_on(stream,
             [=] { host_library().state.chunk_squares(Stream{}, x, chunks, count, votes); });
    };
    l.state.commit = [](Stream stream, const double* votes, const VoteLayout& layout,
                        const StepInputs* inputs, StepOutcome* outcome) {
      put_on(stream,
             [=] { host_library().state.commit(Stream{}, votes, layout, inputs, outcome); });
    };
    l.state.update = [](Stream stream, const UpdateArguments& arguments) {
      put_on(stream, [=] { host_library().state.update(Stream{}, arguments); });
    };
    l.state.cast = [](Stream stream, const float* from, void* to, int64_t n, Precision precision) {
      put_on(stream, [=] { host_library().state.cast(Stream{}, from, to, n, precision); });
    };
    l.join = [](Device& device, const GroupOptions& options, Clock& clock, Deadline deadline,
                const Cancel* cancel) -> std::unique_ptr<DeviceGroup> {
      return std::make_unique<StreamGroup>(
          host_library().join(device, options, clock, deadline, cancel));
    };
    return l;
  }();
  return library;
}

}  // namespace tutti::testing_support
