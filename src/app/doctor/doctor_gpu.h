// What `tutti doctor` measures of a GPU.
#pragma once

#include <string>
#include <vector>

#include "exec/device.h"

namespace tutti {

struct GpuRates {
  double float32 = 0, bfloat16 = 0;  ///< FLOP/s of ATen's matmul
  /// bytes per second that a copy in its own memory reads and writes
  double copy = 0;
  double to_device = 0, to_host = 0;  ///< bytes per second of the link, from and to pinned memory
  std::vector<int> peers;             ///< ordinals of the devices whose memory it reaches directly
  std::string fault;                  ///< why there are no rates; empty: there are
};

/// Measures in a child process that ends after `seconds` at the latest.
GpuRates measure_gpu(const DeviceInfo& device, int devices, double seconds);

}  // namespace tutti
