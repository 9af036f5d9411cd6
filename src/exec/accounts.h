// Accounted memory: every byte that training holds belongs to a kind, and the peak per kind is
// known at the end.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "plan/ir/program.h"

namespace tutti {

/// Counters of one rank. Thread-safe.
class Accounts {
 public:
  void add(BufferKind kind, int64_t bytes);  ///< negative: given back
  int64_t current(BufferKind kind) const;
  int64_t peak(BufferKind kind) const;
  int64_t peak_total() const;  ///< of the sum over kinds
  void reset_peaks();

 private:
  std::array<std::atomic<int64_t>, kBufferKinds> current_{}, peak_{};
  std::atomic<int64_t> total_{0}, peak_total_{0};
};

/// Where an arena's memory comes from when it is not the host's own. Thread-safe.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// Memory that begins on a 256-byte border and is all zero. Throws Error naming the kind
  /// when it cannot be had.
  virtual std::span<std::byte> take(BufferKind kind, size_t bytes) = 0;
  virtual void give_back(std::span<std::byte> memory) = 0;
};

/// One mapping, from which memory is taken in steps of 256 bytes, one after the other, and
/// which is given back as a whole (a bump allocator). Throws Error naming the kind when the
/// memory cannot be had.
class Arena {
 public:
  /// `source` must outlive it; null means the host's own memory.
  Arena(BufferKind kind, size_t bytes, Accounts& accounts, MemorySource* source = nullptr);
  /// Over memory that belongs to somebody else (a transport's window): accounted, not owned.
  Arena(BufferKind kind, std::span<std::byte> memory, Accounts& accounts);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  std::span<std::byte> take(size_t bytes);
  std::span<float> take_floats(int64_t n);
  size_t left() const { return memory_.size() - used_; }

 private:
  BufferKind kind_;
  std::span<std::byte> memory_;
  size_t used_ = 0;
  bool owned_ = false;
  MemorySource* source_ = nullptr;
  Accounts& accounts_;
};

}  // namespace tutti
