// Norm and Update on a device: the squares of what this rank owns of the sum of a unit, and the
// update of what it holds of the unit. All addresses are worked out in the constructor.
#pragma once

#include <vector>

#include "engine/device/device_commit.h"
#include "engine/device/low_copies.h"
#include "engine/parts.h"

namespace tutti {

class DeviceUpdates {
 public:
  /// All arguments must outlive it.
  DeviceUpdates(const EngineParts& parts, const RankDevice& rank, const LowCopies& low,
                DeviceCommit& commit);

  void put_norm(const Instruction& norm, Stream stream);
  void put_update(const Instruction& update, Stream stream) const;
  /// Whether no other Update of the program comes before it.
  bool is_first(const Instruction& update) const { return update.id == first_; }

 private:
  void prepare_norm(const Instruction& i);
  void prepare_update(const Instruction& i);

  const EngineParts& p_;
  const LowCopies& low_;
  const StateKernels& kernels_;
  DeviceCommit& commit_;
  std::vector<ChunkList> squares_;        // by unit
  std::vector<UpdateArguments> updates_;  // by unit
  uint32_t first_ = 0;                    // id of the first Update
};

}  // namespace tutti
