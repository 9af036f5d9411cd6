// Pieces of a transfer whose addresses are known: what device/device_columns.h and
// device/device_transfers.h make in their constructors and put on a stream on every run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/fold.h"

namespace tutti {

/// StateKernels::fold's.
struct PlacedFold {
  float* out;
  std::vector<const float*> terms;
  std::vector<FoldStep> order;
  int64_t size;
};

/// Inside of one device.
struct PlacedCopy {
  std::byte* to;
  const std::byte* from;
  size_t bytes;
};

}  // namespace tutti
