// Copies in 16 bits of the parameters that the programs compute with (their float32 values are the
// master weights): one for each buffer that a segment reads parameters from, of the same floats.
// Whoever writes the buffer writes its copy, too.
#pragma once

#include <map>
#include <memory>

#include "engine/device/rank_device.h"
#include "engine/parts.h"

namespace tutti {

class LowCopies {
 public:
  /// All arguments must outlive it. In float32 there are no copies.
  LowCopies(const EngineParts& parts, const RankDevice& rank);
  /// The copy of the buffer at that address; null: it has none.
  void* of(const void* buffer) const;
  /// Brings the copy of a buffer that holds values of `unit` up to date.
  void write(Stream stream, const Buffer& buffer, int unit, const void* memory) const;
  /// Writes all of them, from what is in the buffers.
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
  std::map<const void*, Copy> copies_;  // by the address of the buffer
};

}  // namespace tutti
