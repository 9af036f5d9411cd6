// What all update kernels do to a gradient first. Only for *.simd.cc files.
#pragma once

#include "base/simd/vec.h"
#include "optim/update_kernels.h"

namespace tutti::TUTTI_ISA {

struct Gradient {
  explicit Gradient(const GradientScalars& s)
      : scale(set(s.scale)), high(set(s.limit)), low(set(-s.limit)) {}
  /// The gradient, scaled and cut. NaN stays NaN: it is the second operand of both comparisons.
  F operator()(F g) const { return max(low, min(high, g * scale)); }
  F scale, high, low;
};

}  // namespace tutti::TUTTI_ISA
