// Copies in 16 bits of the parameters that a mesh's programs compute with: one behind each buffer
// that a segment reads parameters from, of the same floats. Who writes the buffer writes the copy
// behind it.
#pragma once

#include <map>
#include <memory>

#include "engine/device/rank_device.h"
#include "engine/parts.h"

namespace tutti {

class LowCopies {
 public:
  /// All must outlive it. In float32 there are none.
  LowCopies(const EngineParts& parts, const RankDevice& rank);
  /// Of the buffer that lies there; null: it has none.
  void* of(const void* buffer) const;
  /// Brings the copy of a buffer that holds values of `unit` up to date.
  void write(Stream stream, const Buffer& buffer, int unit, const void* memory) const;
  /// All of them, from what is in the buffers of the program.
  void write_all(Stream stream) const;
  static int64_t bytes(const Program& program, const Program& forward, Precision precision);

 private:
  struct Copy {
    std::byte* memory;
    int64_t floats;
  };
  const ModelShape& shape_;
  const Precision precision_;
  const StateKernels& kernels_;
  std::unique_ptr<Arena> arena_;
  std::map<const void*, Copy> copies_;  // by where the buffer lies
};

}  // namespace tutti
