// What travels between devices, and between a device and its host, in one program: reduces,
// gathers, exchanges, messages and offloaded values, all put on streams. All addresses are worked
// out in the constructor.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "device/device_columns.h"
#include "device/device_transfers.h"
#include "engine/device/device_arrays.h"
#include "engine/device/device_groups.h"
#include "engine/device/low_copies.h"
#include "engine/station.h"

namespace tutti {

class DeviceTravel {
 public:
  /// What a program's travel goes through besides the engine's parts.
  struct Ways {
    const Station& station;
    const RankDevice& rank;
    const DeviceGroups& groups;
    const LowCopies& low;
  };
  /// `arrays`: what it receives into. All must outlive it.
  DeviceTravel(const EngineParts& parts, Which which, const Ways& ways, DeviceArrays& arrays);

  /// Puts a Reduce, Gather, Exchange, Send, Recv, Fetch or Evict of the program on the stream. If
  /// parameters are gathered or fetched, their low copies are written, too.
  void put(const Instruction& instruction, Stream stream);
  /// The gathers after the Updates, in the order of their ids.
  const std::vector<const Instruction*>& refreshes() const { return refreshes_; }
  /// Bytes of memory that the reduces of a rank receive into.
  static int64_t scratch_bytes(const Plan& plan, const Program& program);

 private:
  void prepare(const Instruction& i, QueueUse queue, std::byte* scratch);
  void prepare_reduce(const Instruction& i, QueueUse queue, std::byte* scratch);
  void prepare_exchange(const Instruction& i);
  void write_low(const Instruction& i, Stream stream) const;
  void copy_tier(const Instruction& i, Stream stream) const;

  std::byte* window() const { return p_.state.memory->window().data(); }
  std::byte* memory(int buffer) const { return p_.state.memory->of(which_, buffer); }

  const EngineParts& p_;
  const Which which_;
  const Ways ways_;
  Device& device_;
  const StateKernels& kernels_;
  const Plan& plan_;
  const Program& program_;
  std::unordered_map<uint32_t, std::unique_ptr<DeviceSum>> sums_;
  std::unordered_map<uint32_t, std::unique_ptr<DeviceCopies>> copies_;
  std::unordered_map<uint32_t, DeviceColumns> exchanges_;
  std::unordered_map<uint32_t, DeviceGroup*> links_;  // of sends and receives
  std::vector<const Instruction*> refreshes_;
};

}  // namespace tutti
