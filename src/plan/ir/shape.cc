// Sums and questions over a model's shape.
#include "plan/ir/shape.h"

#include <algorithm>

namespace tutti {

int64_t ModelShape::parameter_count() const {
  int64_t count = 0;
  for (const BlockShape& block : blocks) {
    for (const ParameterShape& parameter : block.parameters)
      if (parameter.role == Role::kTrained) count += parameter.size;
  }
  return count;
}

double ModelShape::flops() const {
  // Backward costs twice as much as forward.
  double forward = 0;
  for (const BlockShape& block : blocks) {
    for (const SegmentShape& segment : block.segments) forward += segment.flops;
  }
  return 3 * forward;
}

bool ModelShape::has_foreign_writers(int unit) const {
  return std::any_of(blocks.begin(), blocks.end(), [unit](const BlockShape& block) {
    return std::find(block.writes_units.begin(), block.writes_units.end(), unit) !=
           block.writes_units.end();
  });
}

}  // namespace tutti
