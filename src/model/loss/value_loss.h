// Losses of values by hand, for the CPU: one element at a time in float64, with the same bits on
// every processor.
#pragma once

#include <memory>

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

/// A loss of one element and its derivative by the output, for the rows of loss.cc.
struct ElementLoss {
  double (*loss)(double output, double target, const LossConfig& config) = nullptr;
  double (*slope)(double output, double target, const LossConfig& config) = nullptr;
};

/// The sum over the elements whose target is not NaN, and their number. Outputs and targets are
/// float, of the same dims.
std::unique_ptr<Segment> make_value_loss(const ElementLoss& element, const LossConfig& config,
                                         Border output, Border targets);

}  // namespace tutti
