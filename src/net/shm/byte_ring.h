// A byte stream from one process to another through shared memory: a ring for one producer and one
// consumer, without locks. All zeros is an empty ring.
//   head   bytes ever written; only the producer writes it
//   tail   bytes ever read; only the consumer writes it
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tutti {

struct Ring {
  alignas(64) std::atomic<uint64_t> head{0};
  alignas(64) std::atomic<uint64_t> tail{0};
  /// the producer waits for room and wants to be told
  alignas(64) std::atomic<uint32_t> starved{0};
};
static_assert(sizeof(Ring) == 192);

/// One end of a ring and its `capacity` bytes (a power of two). What the other process wrote there
/// is not trusted: room() and filled() never exceed the capacity.
class RingEnd {
 public:
  RingEnd() = default;
  RingEnd(Ring* ring, std::byte* data, size_t capacity)
      : ring_(ring), data_(data), capacity_(capacity) {}

  size_t room() const { return capacity_ - filled(); }
  size_t filled() const {
    return std::min<size_t>(capacity_, ring_->head.load(std::memory_order_acquire) -
                                           ring_->tail.load(std::memory_order_acquire));
  }

  /// Appends to what write() copied before; the consumer sees it after publish().
  void write(const void* from, size_t bytes) {
    move(bytes, [&](std::byte* at, size_t done, size_t n) {
      std::memcpy(at, static_cast<const std::byte*>(from) + done, n);
    });
  }
  void publish() { ring_->head.store(position_, std::memory_order_seq_cst); }

  /// Copies out, or skips where `to` is null; the producer gets the room after release().
  void read(void* to, size_t bytes) {
    move(bytes, [&](const std::byte* at, size_t done, size_t n) {
      if (to != nullptr) std::memcpy(static_cast<std::byte*>(to) + done, at, n);
    });
  }
  void release() { ring_->tail.store(position_, std::memory_order_seq_cst); }

  /// Producer: asks to be told about room. It must look at room() once more after that, for room
  /// that was made in between; the sequentially consistent stores of both sides make this safe.
  void ask_for_room() { ring_->starved.store(1, std::memory_order_seq_cst); }
  /// Consumer: whether the producer asked since.
  bool asked_for_room() {
    return ring_->starved.load(std::memory_order_seq_cst) != 0 &&
           ring_->starved.exchange(0, std::memory_order_seq_cst) != 0;
  }

 private:
  template <typename F>
  void move(size_t bytes, F&& part) {
    // At the end of the memory the copy goes on at its start: at most two parts.
    const size_t at = position_ & (capacity_ - 1);
    const size_t first = std::min(bytes, capacity_ - at);
    part(data_ + at, 0, first);
    if (first < bytes) part(data_, first, bytes - first);
    position_ += bytes;
  }

  Ring* ring_ = nullptr;
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  // of this end; ahead of head or tail between a copy and its publish() or release()
  uint64_t position_ = 0;
};

}  // namespace tutti
