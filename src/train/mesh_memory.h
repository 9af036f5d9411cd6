// The memory of a mesh's program: every buffer that it names, and nothing else. Those that other ranks read lie in the
// transport's window where it has one; the rest in arenas by kind.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/memory.h"
#include "model/segment.h"
#include "plan/program.h"

namespace tutti {

/// Bytes of the window that the rank's program wants.
int64_t window_bytes_of(const Program& program);

class MeshMemory {
 public:
  /// `window`: of the transport; empty: it has none. `forward`: a program of evaluation, which finds its buffers by name
  /// among those of `program`. What ATen allocates itself inside of segments gets no memory here. All arguments must
  /// outlive it.
  MeshMemory(const Model& model, const Program& program, const Program& forward, std::span<std::byte> window,
             Accounts& accounts, MemorySource* source = nullptr);

  std::byte* of(int buffer) const { return memory_[buffer]; }
  std::byte* of_forward(int buffer) const { return forward_memory_[buffer]; }
  float* floats(int buffer) const { return reinterpret_cast<float*>(memory_[buffer]); }
  /// What the transfers' offsets count from.
  std::span<std::byte> window() const { return window_; }

 private:
  Accounts uncounted_;  // of the window, which counts as what it holds
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::span<std::byte> window_;
  std::vector<std::byte*> memory_, forward_memory_;  // by buffer
};

}  // namespace tutti
