// What a rank of a mesh holds of every unit, and its values: all or a slice of the units at its home, nothing of the
// others.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/units.h"
#include "exec/device.h"
#include "exec/memory.h"
#include "model/segment.h"
#include "plan/make/mesh.h"
#include "state/state.h"

namespace tutti {

/// Floats of a unit, counted from its start; empty: nothing. `moments` is what this rank updates.
struct Held {
  Range parameters, moments;
  bool operator==(const Held&) const = default;
};
/// By unit. ZeRO-1 and 2 slice the moments over the shards, ZeRO-3 the parameters, too.
std::vector<Held> held_by(const ModelShape& shape, const MeshOptions& options, int rank);

/// The state's entries, in model order; the same for every layout. A shared parameter is its owner's alone.
std::vector<EntryShape> state_entries(const ModelShape& shape, const std::vector<std::string>& slots);

/// Where the values of a unit lie: the first float held. Moments that are given no place get one.
struct UnitMemory {
  float* parameters = nullptr;
  std::vector<float*> slots;  ///< by slot; empty: MeshUnits takes memory for them
};

class MeshUnits final : public UnitValues {
 public:
  /// Initialises the held parameters by (seed, name); slots start at zero. `memory` is by unit, stays the caller's, and
  /// lies on the `device` where there is one (which must outlive this); then the host keeps a mirror of all pieces.
  MeshUnits(const Model& model, const ModelShape& shape, std::vector<Held> held, std::vector<std::string> slots,
            uint64_t seed, std::vector<UnitMemory> memory, Accounts& accounts, Device* device = nullptr);
  ~MeshUnits() override;
  MeshUnits(const MeshUnits&) = delete;
  MeshUnits& operator=(const MeshUnits&) = delete;

  const Held& held(int unit) const { return held_[unit]; }
  /// Only of what is held.
  float* parameters(int unit, int64_t offset) const override;
  std::vector<float*> slots(int unit, int64_t offset) const override;

  const std::vector<EntryShape>& entries() const { return entries_; }
  /// What this rank holds of the entries, in their order. On a device the spans are of the mirror: as of the last
  /// upload or copy_out() that has run, and until the next.
  const std::vector<StatePiece>& pieces() const { return pieces_; }
  /// On a device: what was written into the pieces becomes the units' values. Else nothing.
  void upload() const;
  /// On a device: puts a copy of all pieces into the mirror on a stream.
  void copy_out(Stream stream) const;

 private:
  /// A range of a unit in one slot (-1: the parameters) and where it lies in the mirror.
  struct Copy {
    float* values;
    int64_t size;
    size_t mirror_at;  // floats
  };
  void take_memory(Accounts& accounts);
  void place_copies();
  std::span<float> on_host(int unit, int slot, Range range) const;
  const Copy& copy_of(int unit, int slot) const { return copies_[unit][slot + 1]; }
  float* values(int unit, int slot) const { return slot < 0 ? memory_[unit].parameters : memory_[unit].slots[slot]; }
  Range range(int unit, int slot) const { return slot < 0 ? held_[unit].parameters : held_[unit].moments; }

  const ModelShape& shape_;
  const std::vector<Held> held_;
  const std::vector<std::string> slot_names_;
  std::vector<UnitMemory> memory_;
  Device* const device_;
  std::unique_ptr<Arena> moments_;         // null: all have a place
  std::vector<std::vector<Copy>> copies_;  // [unit][slot + 1]
  std::span<std::byte> mirror_;
  Stream stream_;
  std::vector<EntryShape> entries_;
  std::vector<StatePiece> pieces_;
};

}  // namespace tutti
