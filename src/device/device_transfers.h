// What a Reduce and a Gather of a plan (plan/ir/transfers.h) do on a device: what comm/pulls.h does
// on the host, put on a stream. Here no rank reads another's memory: what a contributor's window
// holds is sent from there.
//
// All addresses are worked out in the constructors. run() only puts work on the stream, the same on
// every call, so that it can be captured. Device, group, window, levels, targets and scratch must
// outlive the objects.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "device/group.h"
#include "device/placed.h"
#include "device/state_kernels.h"
#include "plan/ir/transfers.h"

namespace tutti {

/// A Reduce: the sum of a parcel's gradients, made by the owners of its slices (a reduce-scatter).
class DeviceSum {
 public:
  /// `window` is this rank's memory from which offsets count. `levels` are an owner's stack by
  /// unit, each level level_floats() long; level 0 may be in the same place as this rank's own
  /// contribution, float by float. `scratch` has scratch_bytes() and may be shared by sums that
  /// never run at the same time. `group` is that of all ranks, null for one alone.
  DeviceSum(const SumTransfer& transfer, int rank, std::byte* window,
            const std::vector<std::vector<float*>>& levels, std::byte* scratch, DeviceGroup* group,
            const StateKernels& kernels);
  /// When it has run, this rank's contributions are free and what it owns is summed.
  void run(Stream stream);
  static int64_t scratch_bytes(const SumTransfer& transfer, int rank);

 private:
  struct Part {
    Range floats;                     // what I own of a source
    int64_t position = 0;             // where it begins in a level
    std::vector<const float*> terms;  // where its first float is
  };
  void give(const SumTransfer& transfer, int rank, const std::byte* window);
  std::vector<Part> take(const UnitSum& unit, int rank, Range slice, const std::byte* window,
                         float*& scratch);
  void add(const SumTransfer& transfer, const std::vector<Part>& parts, Range piece,
           const std::vector<float*>& levels);
  void add(const LevelSum& sum, const std::vector<const Part*>& parts, Range piece,
           const std::vector<float*>& levels);
  void add_up(const SumTransfer& transfer, int rank, std::byte* window);

  DeviceGroup* group_;
  const StateKernels& kernels_;
  struct Whole {
    float* values;
    int64_t size;
  };
  std::vector<Whole> wholes_;  // sums without an order, which the group makes
  std::vector<DeviceSend> sends_;
  std::vector<DeviceReceive> receives_;
  std::vector<PlacedFold> folds_;
};

/// A Gather: ranges are copied to the ranks that hold them whole (an all-gather).
class DeviceCopies {
 public:
  /// `memory(buffer)` is the address of a buffer that this rank writes.
  DeviceCopies(const CopyTransfer& transfer, int rank, std::byte* window,
               const std::function<std::byte*(int buffer)>& memory, Device& device,
               DeviceGroup* group);
  void run(Stream stream);

 private:
  Device& device_;
  DeviceGroup* group_;
  std::vector<PlacedCopy> own_;
  std::vector<DeviceSend> sends_;
  std::vector<DeviceReceive> receives_;
};

}  // namespace tutti
