// When a loss or a gradient is not finite the step is not committed, so it can be run again
// (Engine::search) to name the place.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "plan/ir/shape.h"

namespace tutti {

/// Thrown by the vote on every rank at the same step.
struct NonFinite : std::exception {
  const char* what() const noexcept override { return "a loss or gradient is not finite"; }
};

/// Travels as bytes. lane < 0: nothing was found on this rank.
struct NonFinitePlace {
  int32_t lane = -1, micro = 0, block = -1;
  int32_t gradient = 0;  ///< 1: the outputs were finite, a gradient was not
};

/// Whether one is computed before the other: by lane, micro-batch, forward before backward.
bool computed_before(const NonFinitePlace& a, const NonFinitePlace& b);

/// The message for the first place of all.
std::string describe_nonfinite(const std::vector<NonFinitePlace>& places, int64_t step,
                               const ModelShape& shape);

}  // namespace tutti
