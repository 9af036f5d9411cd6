// The area under the ROC curve, exactly, and the scores of classes that it is taken of.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tutti {

/// Log-odds of every class against all others together, log(p / (1 - p)), from logits x. They order
/// targets as the probabilities do, and still tell those apart whose probability would round to 1.
/// Never NaN.
void log_odds(const float* x, int64_t classes, float* out);

/// The share of pairs (positive, negative) whose positive has the larger score, ties counting half.
/// Label i has the score first + i * stride and is positive when it equals `positive`. None without
/// both kinds. Does not depend on the order of the targets; scores must not be NaN.
std::optional<double> auc_of(const std::vector<float>& scores, const std::vector<int32_t>& labels,
                             int64_t first, int64_t stride, int32_t positive);

}  // namespace tutti
