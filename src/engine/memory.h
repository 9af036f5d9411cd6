// The memory of a mesh's program: every buffer that it names, and nothing else. Those that other ranks read lie in the
// transport's window where it has one; the rest in arenas by kind.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/device.h"
#include "exec/tier.h"
#include "model/segment.h"
#include "plan/ir/program.h"

namespace tutti {

/// Bytes of the window that the rank's program wants.
int64_t window_bytes_of(const Program& program);
/// Bytes that ATen will take itself inside of the program's segments: by the plan's account, but not MeshMemory's.
int64_t aten_bytes(const Model& model, const Program& program);

class MeshMemory {
 public:
  /// `window`: of the transport; empty: it has none. `forward`: a program of evaluation, which finds its buffers by
  /// name among those of `program`. What ATen allocates itself inside of segments gets no memory here. All arguments
  /// must outlive it. With a `device` all is its memory. Offloaded buffers lie in a file in `tier_folder`, beside a
  /// device in pinned memory of the host.
  MeshMemory(const Model& model, const Program& program, const Program& forward, std::span<std::byte> window,
             const std::string& tier_folder, Accounts& accounts, Device* device = nullptr);
  ~MeshMemory();
  MeshMemory(const MeshMemory&) = delete;
  MeshMemory& operator=(const MeshMemory&) = delete;

  std::byte* of(int buffer) const { return memory_[buffer]; }
  std::byte* of_forward(int buffer) const { return forward_memory_[buffer]; }
  float* floats(int buffer) const { return reinterpret_cast<float*>(memory_[buffer]); }
  /// What the transfers' offsets count from.
  std::span<std::byte> window() const { return window_; }
  /// Between an offloaded buffer in the file and another one's memory.
  void fetch(const std::byte* offloaded, std::span<std::byte> into) const;
  void evict(std::byte* offloaded, std::span<const std::byte> from) const;
  /// Lets memory go in which offloaded values were looked at.
  void forget_tier() const;

 private:
  std::byte* make_tier(const std::string& folder, int64_t bytes);

  Device* const device_;
  Accounts uncounted_;  // of the window, which counts as what it holds
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::span<std::byte> window_;
  std::unique_ptr<FileTier> tier_;                   // null: nothing is offloaded, or beside a device
  std::span<std::byte> pinned_;                      // the tier beside a device
  std::vector<std::byte*> memory_, forward_memory_;  // by buffer; offloaded ones are in the tier, mapped or pinned
};

}  // namespace tutti
