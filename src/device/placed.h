// Parts of a transfer whose addresses are known. device/device_columns.h and
// device/device_transfers.h make them in their constructors and put them on a stream at every run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/fold.h"

namespace tutti {

/// The arguments of StateKernels::fold.
struct PlacedFold {
  float* out;
  std::vector<const float*> terms;
  std::vector<FoldStep> order;
  int64_t size;
};

/// A copy within one device.
struct PlacedCopy {
  std::byte* to;
  const std::byte* from;
  size_t bytes;
};

}  // namespace tutti
