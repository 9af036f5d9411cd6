// The values of a model on one rank: what it holds of every unit's parameters and optimizer slots,
// in flat memory of the host or of a device. A unit is what FSDP calls a flat parameter: all
// parameters of one block, one after the other.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/accounts.h"
#include "exec/device.h"
#include "model/core/segment.h"
#include "plan/ir/program.h"
#include "state/holdings.h"

namespace tutti {

/// Where the values of units are, whoever holds them: what an update needs to know of them.
class UnitValues {
 public:
  virtual ~UnitValues() = default;
  /// The parameters from `offset` floats after the start of the unit on; slots()
  /// likewise, for each slot.
  virtual float* parameters(int unit, int64_t offset) const = 0;
  virtual std::vector<float*> slots(int unit, int64_t offset) const = 0;
};

/// Floats of a unit that a rank holds, counted from the start of the unit; empty: none. `moments`
/// is what this rank updates.
struct Held {
  Range parameters, moments;
  bool operator==(const Held&) const = default;
};
/// What a rank holds of each unit, as the plan says.
std::vector<Held> held_by(const Plan& plan, int rank);
/// What a rank holds that holds everything.
std::vector<Held> all_held(const ModelShape& shape);

/// Where the values of a unit are: the address of the first float held. What is given no place gets
/// one.
struct UnitMemory {
  float* parameters = nullptr;
  std::vector<float*> slots;  ///< by slot
};

class Units final : public UnitValues {
 public:
  /// Initialises the held parameters by (seed, name), and slots with zeros; without a seed values
  /// are about to come from elsewhere. `memory` is by unit, or empty; it stays the caller's and is
  /// on the `device` where there is one (which must outlive this); then the host keeps a mirror of
  /// all pieces.
  Units(const Model& model, const ModelShape& shape, std::vector<Held> held,
        std::vector<std::string> slots, std::optional<uint64_t> seed,
        std::vector<UnitMemory> memory, Accounts& accounts, Device* device = nullptr);
  ~Units() override;
  Units(const Units&) = delete;
  Units& operator=(const Units&) = delete;

  const Held& held(int unit) const { return held_[unit]; }
  /// To be asked only for what is held.
  float* parameters(int unit, int64_t offset) const override;
  std::vector<float*> slots(int unit, int64_t offset) const override;

  const std::vector<EntryShape>& entries() const { return entries_; }
  /// What this rank holds of the entries, in their order. On a device the spans are of the mirror:
  /// its values are those of the last upload or copy_out() that has run, until the next one.
  const std::vector<StatePiece>& pieces() const { return pieces_; }
  /// Those that this rank updates itself, without its copies of what others update: what is right
  /// when a step was committed and new parameters have not been gathered.
  std::vector<StatePiece> updated_pieces() const;
  /// Every parameter and slot, in model order, of a rank that holds all of them;
  /// spans as in pieces().
  State state(const StateCounters& counters) const;
  /// On a device: what was written into the pieces becomes the values of the units. Without one
  /// there is nothing to do.
  void upload() const;
  /// On a device: puts a copy of all pieces into the mirror on a stream.
  void copy_out(Stream stream) const;

 private:
  /// A range of a unit in one slot (-1: the parameters), and its place in the mirror.
  struct Copy {
    float* values;
    int64_t size;
    size_t mirror_at;  // floats
  };
  void take_memory(Accounts& accounts);
  void place_copies();
  std::span<float> on_host(int unit, int slot, Range range) const;
  const Copy& copy_of(int unit, int slot) const { return copies_[unit][slot + 1]; }
  float* values(int unit, int slot) const {
    return slot < 0 ? memory_[unit].parameters : memory_[unit].slots[slot];
  }
  Range range(int unit, int slot) const {
    return slot < 0 ? held_[unit].parameters : held_[unit].moments;
  }

  const ModelShape& shape_;
  const std::vector<Held> held_;
  const std::vector<std::string> slot_names_;
  std::vector<UnitMemory> memory_;
  Device* const device_;
  std::unique_ptr<Arena> parameters_, moments_;  // of those that were given no place
  std::vector<std::vector<Copy>> copies_;        // [unit][slot + 1]
  std::span<std::byte> mirror_;
  Stream stream_;
  std::vector<EntryShape> entries_;
  std::vector<StatePiece> pieces_;
};

}  // namespace tutti
