// The exact area under the ROC curve, and the scores of classes from which it is computed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tutti {

/// Log-odds of every class against all others together, log(p / (1 - p)), from logits x. They order
/// targets as the probabilities do, but still tell those apart whose probability would round to 1.
/// Never NaN.
void log_odds(const float* x, int64_t classes, float* out);

/// The share of pairs (positive, negative) of which the positive has the larger score; ties count
/// half. Label i has the score at first + i * stride, and is positive if it equals `positive`.
/// There is no value without both kinds. It does not depend on the order of the targets. Scores
/// must not be NaN.
std::optional<double> auc_of(const std::vector<float>& scores, const std::vector<int32_t>& labels,
                             int64_t first, int64_t stride, int32_t positive);

}  // namespace tutti
