// The memory of a rank's programs: every buffer that they name, and nothing else. Buffers that
// other ranks read are in the rank's window, if its transport has one, and the rest in arenas by
// kind. All of it outlives the transport: the state in it can be read, and moved to the memory of
// another plan, when the connections are gone.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exec/device.h"
#include "exec/tier.h"
#include "model/core/segment.h"
#include "net/transport.h"
#include "plan/ir/plans.h"

namespace tutti {

/// Bytes that ATen allocates inside the program's segments. The plan accounts for them, but they
/// get no memory of ProgramMemory.
int64_t aten_bytes(const Model& model, const Program& program);

class ProgramMemory {
 public:
  /// `window`: the transport's, which is kept; null: it has none. `forward`: a program of
  /// evaluation, which shares buffers of `program`. What ATen allocates itself inside of segments
  /// gets no memory here. The accounts and the device must outlive it. With a `device` all is its
  /// memory. Offloaded buffers are in a file in `tier_folder`, with a device in pinned memory of
  /// the host.
  ProgramMemory(const Model& model, const Program& program, const Program& forward,
                std::shared_ptr<Window> window, const std::string& tier_folder, Accounts& accounts,
                Device* device = nullptr);
  ~ProgramMemory();
  ProgramMemory(const ProgramMemory&) = delete;
  ProgramMemory& operator=(const ProgramMemory&) = delete;

  std::byte* of(Which which, int buffer) const {
    return which == Which::kSteps ? memory_[buffer] : forward_memory_[buffer];
  }
  std::byte* of(int buffer) const { return memory_[buffer]; }  ///< of the steps' program
  float* floats(int buffer) const { return reinterpret_cast<float*>(memory_[buffer]); }
  /// The memory that the offsets of transfers count from.
  std::span<std::byte> window() const { return window_; }
  /// The same, to be shown by another transport; null: there was none.
  const std::shared_ptr<Window>& held_window() const { return held_; }
  /// Copies between an offloaded buffer in the file and the memory of another buffer.
  void fetch(const std::byte* offloaded, std::span<std::byte> into) const;
  void evict(std::byte* offloaded, std::span<const std::byte> from) const;
  /// Lets go of the memory that looking at offloaded values has taken.
  void forget_tier() const;

 private:
  std::byte* make_tier(const std::string& folder, int64_t bytes);

  Device* const device_;
  const std::shared_ptr<Window> held_;
  Accounts& accounts_;
  Accounts uncounted_;                 // of the window, which counts as what it holds
  std::vector<int64_t> window_bytes_;  // by kind: what is in the window
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::span<std::byte> window_;
  // null: nothing is offloaded, or there is a device
  std::unique_ptr<FileTier> tier_;
  std::span<std::byte> pinned_;  // the tier, if there is a device
  // by buffer; offloaded ones are in the tier, mapped or pinned
  std::vector<std::byte*> memory_, forward_memory_;
};

}  // namespace tutti
