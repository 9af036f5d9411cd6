// A Device on the host's memory that runs everything at once, on the calling thread: what is built
// upon devices is tested with it where there is no GPU. It counts what a steady step must not do.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "base/error.h"
#include "exec/device.h"

namespace tutti::testing_support {

class HostDevice final : public Device {
 public:
  explicit HostDevice(int64_t total_bytes = int64_t{1} << 32) {
    info_.name = "host";
    info_.uuid = "host-0";
    info_.total_bytes = info_.free_bytes = total_bytes;
  }
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;
  ~HostDevice() override {
    for (const auto& [memory, bytes] : taken_) std::free(memory);
  }

  const DeviceInfo& info() const override { return info_; }
  int64_t free_bytes() const override {
    std::lock_guard lock(mutex_);
    return info_.total_bytes - held_;
  }

  std::span<std::byte> take(BufferKind kind, size_t bytes) override {
    std::lock_guard lock(mutex_);
    if (held_ + static_cast<int64_t>(bytes) > info_.total_bytes) {
      throw Error(fmt::format("cannot get {} bytes of {} memory on {}: {} are free", bytes,
                              kind_name(kind), info_.name, info_.total_bytes - held_));
    }
    held_ += static_cast<int64_t>(bytes);
    return fresh(bytes);
  }
  void give_back(std::span<std::byte> memory) override {
    std::lock_guard lock(mutex_);
    held_ -= static_cast<int64_t>(memory.size());
    forget(memory);
  }
  std::span<std::byte> take_pinned(size_t bytes) override {
    std::lock_guard lock(mutex_);
    return fresh(bytes);
  }
  void give_back_pinned(std::span<std::byte> memory) override {
    std::lock_guard lock(mutex_);
    forget(memory);
  }

  Stream make_stream() override {
    std::lock_guard lock(mutex_);
    return {&streams_.emplace_back()};
  }
  void copy(Stream, void* to, const void* from, size_t bytes) override {
    std::memmove(to, from, bytes);
  }
  void zero(Stream, void* memory, size_t bytes) override { std::memset(memory, 0, bytes); }
  void make_current(Stream) override {}

  StreamEvent make_event(bool) override {
    std::lock_guard lock(mutex_);
    return {&events_.emplace_back()};
  }
  void record(StreamEvent event, Stream) override {
    static_cast<std::atomic<int64_t>*>(event.handle)
        ->store(std::chrono::steady_clock::now().time_since_epoch().count());
  }
  void wait(Stream, StreamEvent, bool) override {}
  bool done(StreamEvent) const override { return true; }
  double seconds(StreamEvent from, StreamEvent to) const override {
    const auto at = [](StreamEvent e) {
      return static_cast<std::atomic<int64_t>*>(e.handle)->load();
    };
    return std::chrono::duration<double>(std::chrono::steady_clock::duration(at(to) - at(from)))
        .count();
  }
  void synchronise(Stream) override { ++synchronisations_; }

  bool captures() const override { return false; }
  void begin_capture(Stream) override { throw Error("the host's own device captures nothing"); }
  CapturedStep end_capture(Stream) override {
    throw Error("the host's own device captures nothing");
  }
  void launch(const CapturedStep&, Stream) override {
    throw Error("the host's own device captures nothing");
  }
  void destroy(CapturedStep) override {}

  void reserve_pool(int64_t bytes) override {
    std::lock_guard lock(mutex_);
    pool_ = {.reserved = bytes};
  }
  PoolUse pool() const override {
    std::lock_guard lock(mutex_);
    return pool_;
  }
  void reset_pool_peak() override {}

  int64_t held_bytes() const { return info_.total_bytes - free_bytes(); }
  int64_t takes() const { return takes_; }
  int64_t synchronisations() const { return synchronisations_; }

 private:
  std::span<std::byte> fresh(size_t bytes) {
    void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (memory == nullptr && bytes > 0)
      throw Error(fmt::format("cannot get {} bytes from the host", bytes));
    std::memset(memory, 0, bytes);
    taken_[memory] = bytes;
    ++takes_;
    return {static_cast<std::byte*>(memory), bytes};
  }
  void forget(std::span<std::byte> memory) {
    const auto found = taken_.find(memory.data());
    TUTTI_CHECK(found != taken_.end() && found->second == memory.size(),
                "memory that was never taken is given back");
    taken_.erase(found);
    std::free(memory.data());
  }

  DeviceInfo info_;
  mutable std::mutex mutex_;
  std::map<void*, size_t> taken_;
  int64_t held_ = 0;
  std::deque<char> streams_;
  std::deque<std::atomic<int64_t>> events_;  ///< when each was last recorded
  PoolUse pool_;
  std::atomic<int64_t> takes_{0}, synchronisations_{0};
};

}  // namespace tutti::testing_support
