// Opening a device starts CUDA in this process, which no fork survives, so every rank opens its
// own, after the fork.
#include "engine/device/rank_device.h"

#include "model/adapt/adaptor.h"

namespace tutti {

at::Device RankDevice::at_device() const {
  if (library->type != at::kCUDA) return library->type;
  return {at::kCUDA, static_cast<c10::DeviceIndex>(device->info().ordinal)};
}

RankDevice open_rank_device(const Job& job, int rank) {
  RankDevice opened;
  if (job.numerics.device != DeviceKind::kCuda) return opened;
  opened.library = &device_library();
  opened.device = opened.library->open(rank % opened.library->count());
  opened.compute = opened.device->make_stream();
  opened.device->make_current(opened.compute);
  start_backward_thread(opened.at_device());
  return opened;
}

}  // namespace tutti
