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
  struct Parts {
    const Plan& plan;
    const ModelShape& shape;
    int rank;
    std::function<std::byte*(int buffer)> memory;
    std::byte* window;
    const Station& station;
    const DeviceGroups& groups;
    const LowCopies& low;
    Precision precision;
    Device& device;
    const StateKernels& kernels;
    DeviceArrays& arrays;
  };
  /// All parts must outlive it.
  explicit DeviceTravel(const Parts& parts);

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

  const Parts p_;
  const Program& program_;
  std::unordered_map<uint32_t, std::unique_ptr<DeviceSum>> sums_;
  std::unordered_map<uint32_t, std::unique_ptr<DeviceCopies>> copies_;
  std::unordered_map<uint32_t, DeviceColumns> exchanges_;
  std::unordered_map<uint32_t, DeviceGroup*> links_;  // of sends and receives
  std::vector<const Instruction*> refreshes_;
};

}  // namespace tutti
