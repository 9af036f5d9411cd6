// The distance is the restricted Damerau-Levenshtein distance: a swap of two neighbours, the most
// frequent slip, counts as one edit.
#include "config/nearest.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti {

int edit_distance(std::string_view a, std::string_view b) {
  // d[i][j]: distance of the first i letters of a and the first j of b.
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replace = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

// A third of the letters may be wrong, but at least one: "lr" and "eps" have slips too.
bool is_slip(std::string_view word, int distance) {
  return distance <= std::max<int>(1, static_cast<int>(word.size() + 1) / 3);
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t kLongest = 64;  // no name is longer; keeps the table small whatever a user typed
  if (word.size() > kLongest) return {};
  std::string best;
  int best_distance = 0;
  for (const auto& candidate : candidates) {
    const int distance = edit_distance(word, candidate);
    if (is_slip(word, distance) && (best.empty() || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view near) {
  return near.empty() ? "" : fmt::format("; did you mean {}?", near);
}

}  // namespace tutti
