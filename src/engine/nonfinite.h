// Names the place where a loss or a gradient became not finite. Such a step is not committed, so it
// can be run again (Engine::search) to find the place.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "plan/ir/shape.h"

namespace tutti {

/// Ends a step on the host's cores: its vote throws it, on every rank at the same step. On a device
/// the outcome of the step says the same.
struct NonFinite : std::exception {
  const char* what() const noexcept override { return "a loss or gradient is not finite"; }
};

/// What a rank has found. It travels as bytes. lane < 0: nothing was found on this rank.
struct NonFinitePlace {
  int32_t lane = -1, micro = 0, block = -1;
  int32_t gradient = 0;  ///< 1: the outputs were finite, a gradient was not
};

/// Whether `a` is computed before `b`: by lane, then micro-batch, and forward before backward.
bool computed_before(const NonFinitePlace& a, const NonFinitePlace& b);

/// The message for the first of all places.
std::string describe_nonfinite(const std::vector<NonFinitePlace>& places, int64_t step,
                               const ModelShape& shape);

}  // namespace tutti
