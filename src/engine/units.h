// The values of a model on one rank: every unit's parameters and optimizer slots in flat, private, accounted memory of
// the host or of a device.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "exec/device.h"
#include "exec/memory.h"
#include "model/segment.h"
#include "state/state.h"

namespace tutti {

/// Where units' values lie, whoever holds them: what an update needs of them.
class UnitValues {
 public:
  virtual ~UnitValues() = default;
  /// At `offset` floats from the unit's start.
  virtual float* parameters(int unit, int64_t offset) const = 0;
  virtual std::vector<float*> slots(int unit, int64_t offset) const = 0;
};

/// All units whole.
class Units final : public UnitValues {
 public:
  /// Allocates all units and initialises the parameters by (seed, name); slots start at zero. With a `device` (which
  /// must outlive it) they lie in its memory, and the host keeps a mirror of them.
  Units(const Model& model, const ModelShape& shape, const std::vector<std::string>& slots, uint64_t seed,
        Accounts& accounts, Device* device = nullptr);
  ~Units() override;
  Units(const Units&) = delete;
  Units& operator=(const Units&) = delete;

  float* parameters(int unit) const { return parameters_[unit].data(); }
  float* parameters(int unit, int64_t offset) const override { return parameters_[unit].data() + offset; }
  std::vector<float*> slots(int unit, int64_t offset) const override;

  /// Every parameter and slot, in model order; spans into this object. On a device they are of the mirror: as of the
  /// last upload or copy_out() that has run, and until the next.
  State state(const StateCounters& counters) const;
  /// On a device: what was written into state()'s spans becomes the units' values. Else nothing.
  void upload() const;
  /// On a device: puts a copy of all values into the mirror on a stream.
  void copy_out(Stream stream) const;

 private:
  /// The same bytes in host memory: an arena's span there, and the pinned memory behind it.
  std::span<float> on_host(std::span<float> values) const;

  const ModelShape& shape_;
  std::vector<std::string> slot_names_;
  Device* device_;
  Arena parameter_arena_, moment_arena_;
  std::span<std::byte> parameter_bytes_, moment_bytes_;  // of the two arenas, whole
  std::vector<std::span<float>> parameters_;
  std::vector<std::vector<std::span<float>>> slots_;  // [unit][slot]
  std::span<std::byte> mirror_;                       // parameters, then moments
  Stream copies_;
};

}  // namespace tutti
