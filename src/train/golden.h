// The golden check: whether this processor's kernels give the bits that they give on every other. A
// host that is broken, or whose kernels were compiled wrongly, is named before it trains.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/code_path.h"

namespace tutti {

struct Golden {
  std::string kernels;  ///< "matmul", "norm"
  uint64_t digest = 0;  ///< of what they make of keyed draws
  uint64_t expected = 0;
};
/// Every kind of kernel on one code path, in a few milliseconds. Flushes denormals on this thread.
std::vector<Golden> golden(CodePath path);

/// Throws Error that names the kernels whose digest is not the expected one.
void check_golden(CodePath path);

}  // namespace tutti
