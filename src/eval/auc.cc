// Scores of classes and the area under the ROC curve. Both are functions of the set of targets
// alone, so they do not depend on who evaluated what.
#include "eval/auc.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/portable_math.h"

namespace tutti {

void log_odds(const float* x, int64_t classes, float* out) {
  // Exponentials are relative to the largest logit, so that none overflows. For the largest
  // class itself, subtracting it from `all` would cancel; so `rest` adds up the others, relative
  // to the second.
  const int64_t top = std::max_element(x, x + classes) - x;
  double rest = 0, all = 0, second = -std::numeric_limits<double>::infinity();

  for (int64_t j = 0; j < classes; ++j) {
    all += portable::exp(static_cast<double>(x[j]) - x[top]);
    if (j != top) second = std::max(second, static_cast<double>(x[j]));
  }
  for (int64_t j = 0; j < classes; ++j)
    if (j != top) rest += portable::exp(static_cast<double>(x[j]) - second);
  for (int64_t j = 0; j < classes; ++j) {
    // `against` is the logarithm of the sum over all other classes.
    const double against = j == top
                               ? second + portable::log(rest)
                               : x[top] + portable::log(all - portable::exp(double{x[j]} - x[top]));
    const double odds = static_cast<double>(x[j]) - against;
    out[j] = static_cast<float>(std::isnan(odds) ? -std::numeric_limits<double>::infinity() : odds);
  }
}

// Goes over the targets in the order of their scores. 2U is the sum over the positives of 2 *
// (negatives below) + (negatives equal): an integer, divided once by 2 * positives * negatives.
std::optional<double> auc_of(const std::vector<float>& scores, const std::vector<int32_t>& labels,
                             int64_t first, int64_t stride, int32_t positive) {
  std::vector<std::pair<float, bool>> list(labels.size());
  for (size_t i = 0; i < labels.size(); ++i)
    list[i] = {scores[first + static_cast<int64_t>(i) * stride], labels[i] == positive};
  std::sort(list.begin(), list.end());
  int64_t twice = 0, below = 0, positives = 0;
  for (size_t i = 0; i < list.size();) {
    // Equal scores are taken together; ties count half.
    int64_t up = 0, down = 0;
    const float score = list[i].first;
    for (; i < list.size() && list[i].first == score; ++i) ++(list[i].second ? up : down);
    twice += up * (2 * below + down);
    below += down;
    positives += up;
  }
  if (positives == 0 || below == 0) return std::nullopt;
  return static_cast<double>(twice) /
         (2.0 * static_cast<double>(positives) * static_cast<double>(below));
}

}  // namespace tutti
