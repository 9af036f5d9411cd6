// Sums and questions over a model's shape.
#include "plan/ir/shape.h"

namespace tutti {

int64_t ModelShape::parameter_count() const {
  // A shared parameter is listed by its owner alone, so it counts once.
  int64_t count = 0;
  for (const BlockShape& block : blocks) {
    for (const ParameterShape& parameter : block.parameters)
      if (parameter.role == Role::kTrained) count += parameter.size;
  }
  return count;
}

double ModelShape::flops() const {
  // Backward costs twice as much as forward: each matmul has two gradients, that of its input and
  // that of its weight, and each takes a matmul of the same size.
  double forward = 0;
  for (const BlockShape& block : blocks) {
    for (const SegmentShape& segment : block.segments) forward += segment.flops;
  }
  return 3 * forward;
}

}  // namespace tutti
