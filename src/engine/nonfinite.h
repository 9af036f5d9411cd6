// When a loss or a gradient is not finite the step is not committed, so it can be run again, lane by lane, to name the
// place.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/loader.h"
#include "engine/placement.h"
#include "launch/local.h"
#include "plan/ir/shape.h"

namespace tutti {

/// Thrown by the vote on every rank at the same step.
struct NonFinite : std::exception {
  const char* what() const noexcept override { return "a loss or gradient is not finite"; }
};

/// Travels as bytes. lane < 0: nothing was found in this rank's micro-batches.
struct NonFinitePlace {
  int32_t lane = -1, micro = 0, block = -1;
  int32_t gradient = 0;  ///< 1: the loss was finite, a gradient was not (or, with lane < 0, may not have been)
};

/// Repeats this rank's micro-batches of step options.first_step and returns the first place that is not finite. Where
/// the model is cut over ranks, they do so together and look at losses and outputs, not at gradients; the sequence then
/// has their idle turns, too.
NonFinitePlace find_nonfinite(const Model& model, const ModelShape& shape, Placement& placement, LoaderOptions options,
                              uint64_t seed, RankContext& context);

/// The message for the first place: by lane, micro-batch and block.
std::string describe_nonfinite(const std::vector<NonFinitePlace>& places, int64_t step, const ModelShape& shape);

}  // namespace tutti
