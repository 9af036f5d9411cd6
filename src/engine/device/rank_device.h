// The device of a rank, opened before its model is made.
#pragma once

#include <memory>

#include "config/job.h"
#include "device/library.h"

namespace tutti {

/// Empty if the rank trains on the host's cores. The rank opens it, and keeps it until its trainer
/// and its model, which has constants there, are gone.
struct RankDevice {
  const DeviceLibrary* library = nullptr;
  std::unique_ptr<Device> device;
  /// Current for ATen from the start, so that what a dry run makes ATen's pool take is what the
  /// steps find there.
  Stream compute = {};
  explicit operator bool() const { return device != nullptr; }
  /// The device, as ATen names it.
  at::Device at_device() const;
};

/// The ranks of one device, and the bytes that they will take of it together.
struct DeviceShare {
  int ranks = 0;
  int64_t bytes = 0;
};

/// Opens the device of a rank: rank r takes device r mod the number of devices. Empty unless the
/// job's device is cuda.
RankDevice open_rank_device(const Job& job, int rank);

}  // namespace tutti
