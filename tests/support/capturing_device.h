// A device on the host's memory that captures, and watches over what may be captured. What is put
// on it while it captures runs at once, so that the launch after it has nothing left to do; a
// further launch is beyond it.
//
// What it finds at fault between begin and end of a capture:
//   - waiting for the device, asking whether an event is done, taking or giving back memory
//   - work on a stream that has not joined the capture by waiting for an event recorded in it
//   - waiting for an event from outside of the capture without saying so
//   - copies from or to memory that is neither the device's nor pinned
//   - a stream whose last work the capturing stream does not wait for in the end
#pragma once

#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/host_device.h"

namespace tutti::testing_support {

class CapturingDevice final : public Device {
 public:
  explicit CapturingDevice(std::vector<std::string>& faults) : faults_(faults) {}
  int captured() const { return captured_; }
  int launched() const { return launched_; }
  int destroyed() const { return destroyed_; }

  const DeviceInfo& info() const override { return host_.info(); }
  int64_t free_bytes() const override { return host_.free_bytes(); }
  std::span<std::byte> take(BufferKind kind, size_t bytes) override {
    forbid("memory is taken");
    return known(host_.take(kind, bytes));
  }
  void give_back(std::span<std::byte> memory) override {
    forbid("memory is given back");
    memory_.erase(memory.data());
    host_.give_back(memory);
  }
  std::span<std::byte> take_pinned(size_t bytes) override {
    forbid("pinned memory is taken");
    return known(host_.take_pinned(bytes));
  }
  void give_back_pinned(std::span<std::byte> memory) override {
    forbid("pinned memory is given back");
    memory_.erase(memory.data());
    host_.give_back_pinned(memory);
  }

  Stream make_stream() override { return host_.make_stream(); }
  void copy(Stream stream, void* to, const void* from, size_t bytes) override {
    work(stream, "a copy");
    for (const void* memory : {static_cast<const void*>(to), from})
      if (capturing() && !is_known(memory))
        fault("a copy touches memory of the host that is not pinned");
    host_.copy(stream, to, from, bytes);
  }
  void zero(Stream stream, void* memory, size_t bytes) override {
    work(stream, "a zero");
    host_.zero(stream, memory, bytes);
  }
  void make_current(Stream stream) override { current_ = stream.handle; }

  StreamEvent make_event(bool timed) override { return host_.make_event(timed); }
  void record(StreamEvent event, Stream stream) override {
    if (capturing()) {
      if (!joined_.contains(stream.handle))
        fault("an event is recorded on a stream outside of the capture");
      recorded_[event.handle] = {stream.handle, clock_};
    }
    host_.record(event, stream);
  }
  void wait(Stream stream, StreamEvent event, bool outside) override {
    if (!capturing()) return;
    const auto found = recorded_.find(event.handle);
    if (found == recorded_.end()) {
      if (!outside) fault("an event from outside of the capture is waited for");
      if (!joined_.contains(stream.handle)) fault("a stream outside of the capture waits");
      return;
    }
    if (outside) fault("an event of the capture is waited for as if it were outside");
    joined_.insert(stream.handle);
    if (stream.handle == first_)
      ended_[found->second.stream] = found->second.at;
    else
      last_[stream.handle] = ++clock_;
  }
  bool done(StreamEvent event) const override {
    // a thread that writes a checkpoint may ask: a capture is of its own thread
    if (std::this_thread::get_id() == steps_) forbid("an event is asked for");
    return host_.done(event);
  }
  double seconds(StreamEvent from, StreamEvent to) const override {
    forbid("times are asked for");
    return host_.seconds(from, to);
  }
  void synchronise(Stream stream) override {
    forbid("the host waits");
    host_.synchronise(stream);
  }

  bool captures() const override { return true; }
  void begin_capture(Stream stream) override {
    forbid("a capture begins in a capture");
    if (current_ != stream.handle) fault("ATen's stream is another one than that which captures");
    first_ = stream.handle;
    joined_ = {first_};
  }
  CapturedStep end_capture(Stream stream) override {
    if (stream.handle != first_) fault("another stream's capture ends");
    for (const auto& [other, at] : last_)
      if (other != first_ && ended_[other] < at)
        fault("a stream does not come back to the capture");
    first_ = nullptr;
    joined_.clear(), recorded_.clear(), last_.clear(), ended_.clear();
    ++captured_;
    return {this};
  }
  void launch(const CapturedStep& step, Stream) override {
    forbid("a capture is launched");
    if (step.handle != this) fault("what is launched was never captured");
    if (current_ == nullptr) fault("ATen has no stream");
    if (++launched_ > captured_) throw Error("this device launches a captured step once");
  }
  void destroy(CapturedStep) override { ++destroyed_; }

  void reserve_pool(int64_t bytes) override {
    forbid("the pool is reserved");
    host_.reserve_pool(bytes);
  }
  PoolUse pool() const override { return host_.pool(); }
  void reset_pool_peak() override {}

 private:
  struct Recorded {
    void* stream;
    int64_t at;
  };
  bool capturing() const { return first_ != nullptr; }
  void fault(const std::string& what) const { faults_.push_back(what); }
  void forbid(const std::string& what) const {
    if (capturing()) fault(what + " in a capture");
  }
  void work(Stream stream, const std::string& what) {
    if (!capturing()) return;
    if (!joined_.contains(stream.handle)) fault(what + " on a stream that is not in the capture");
    last_[stream.handle] = ++clock_;
  }
  std::span<std::byte> known(std::span<std::byte> memory) {
    memory_[memory.data()] = memory.size();
    return memory;
  }
  bool is_known(const void* memory) const {
    auto found = memory_.upper_bound(static_cast<std::byte*>(const_cast<void*>(memory)));
    if (found == memory_.begin()) return false;
    --found;
    return static_cast<const std::byte*>(memory) < found->first + found->second;
  }

  std::vector<std::string>& faults_;
  const std::thread::id steps_ = std::this_thread::get_id();
  HostDevice host_{int64_t{1} << 40};
  std::map<std::byte*, size_t> memory_;
  void* first_ = nullptr;               // the stream that captures
  void* current_ = nullptr;             // ATen's
  std::set<void*> joined_;              // streams in the capture
  std::map<void*, Recorded> recorded_;  // events of the capture
  std::map<void*, int64_t> last_,
      ended_;  // by stream: its last work, and up to where the capturing stream waits for it
  int64_t clock_ = 0;
  int captured_ = 0, launched_ = 0, destroyed_ = 0;
};

}  // namespace tutti::testing_support
