// A GPU as exec/device.h wants it. One GPU a process: ATen's allocator, its settings and its
// current device are the process's own, so they are set up by the first open and shared by all
// handles.
#pragma once

#include <memory>
#include <vector>

#include "exec/device.h"

namespace tutti {

/// GPUs of this host. Throws Error saying what is missing: a driver, a driver of this runtime's
/// age, a GPU.
int cuda_device_count();
/// Each of them. Gives this process a context on every one, and with it some of its memory.
std::vector<DeviceInfo> cuda_devices();

/// A handle of GPU `ordinal`. Settles for the process: deterministic algorithms, no TF32, no
/// reduced-precision sums, and the pool as ATen's allocator. A second handle of the same GPU shares
/// the pool and the account of memory; another GPU is refused with an Error, as is a process in
/// which ATen has used a GPU before.
std::unique_ptr<Device> open_cuda(int ordinal);

}  // namespace tutti
