// Sums and questions over a model's shape.
#include "plan/ir/shape.h"

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

}  // namespace tutti
