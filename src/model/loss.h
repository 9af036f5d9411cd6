// Losses as segments behind any model.
#pragma once

#include <memory>
#include <string>

#include "model/segment.h"

namespace tutti {

/// Targets with this value do not count.
inline constexpr int64_t kIgnoredTarget = -1;

/// Cross-entropy of `logits` [..., classes] against `targets` [...] (int64). Its output is "loss": the sum over valid
/// targets, added up in float64, and their count. Uses none of its block's parameters, so it can stand behind other
/// segments of a block.
std::unique_ptr<Segment> cross_entropy_segment(Border logits, Border targets);

/// The same as a block of its own, without parameters.
Block cross_entropy_block(std::string name, Border logits, Border targets);

}  // namespace tutti
