// Measures the peak rate of a device's matmuls, by the device's own events.
#include "device/device_rate.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <vector>

namespace tutti {

double matmul_gflops(Device& device, Stream stream, at::Device place, at::ScalarType type) {
  constexpr int kTimes = 5;
  // The largest size, down to 1024, that leaves room: eight matrices fit where three are needed.
  int64_t size = 8192;
  while (size > 1024 &&
         8 * size * size * static_cast<int64_t>(c10::elementSize(type)) > device.free_bytes())
    size /= 2;

  device.make_current(stream);
  const auto options = at::TensorOptions().dtype(type).device(place);
  // Random numbers, since zeros run faster than anything that trains.
  const at::Tensor a = at::randn({size, size}, options), b = at::randn({size, size}, options);

  const StreamEvent from = device.make_event(true), to = device.make_event(true);
  std::vector<double> seconds;
  for (int i = 0; i < kTimes; ++i) {
    device.record(from, stream);
    const at::Tensor c = at::mm(a, b);
    device.record(to, stream);
    device.synchronise(stream);
    seconds.push_back(device.seconds(from, to));
  }

  // The median: the first run loads libraries, and a hot GPU slows down.
  std::sort(seconds.begin(), seconds.end());
  return 2.0 * static_cast<double>(size * size * size) / seconds[kTimes / 2] * 1e-9;
}

}  // namespace tutti
