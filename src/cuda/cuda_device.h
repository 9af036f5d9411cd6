// A GPU as an implementation of exec/device.h. A process has one GPU: ATen's allocator, its
// settings and its current device are the process's own, so they are set up by the first open and
// shared by all handles.
#pragma once

#include <memory>
#include <vector>

#include "exec/device.h"

namespace tutti {

/// The number of this host's GPUs. Throws Error saying what is missing: a driver, a driver that is
/// new enough for this runtime, or a GPU.
int cuda_device_count();
/// Describes each of them. This gives the process a context on every GPU, which takes some of
/// its memory.
std::vector<DeviceInfo> cuda_devices();

/// A handle of GPU `ordinal`. It settles for the process: deterministic algorithms, no TF32, no
/// sums in reduced precision, and the pool as ATen's allocator. A second handle of the same GPU
/// shares the pool and the account of memory. Another GPU is refused with an Error, as is a process
/// in which ATen has used a GPU before.
std::unique_ptr<Device> open_cuda(int ordinal);

}  // namespace tutti
