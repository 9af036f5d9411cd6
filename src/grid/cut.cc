// Where each home has one part, dynamic programming finds the best cut. Where homes have several,
// the sums of their parts count, and a local search starts from that cut.
//   until  sums of the costs so far: a part [a, b) costs until[b] - until[a]
//   ends   where each part ends; it begins where the one before it ends
#include "grid/cut.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace tutti {

namespace {

/// How bad a cut is, compared from left to right: the dearest home; how uneven homes are (the sum
/// of squares); the dearest part.
using CutCost = std::array<double, 3>;

CutCost cut_cost(const std::vector<int>& ends, const std::vector<double>& until,
                 const std::vector<int>& homes) {
  std::vector<double> home(homes.size(), 0);
  CutCost cost{};
  int begin = 0;
  for (size_t part = 0; part < ends.size(); ++part) {
    const double own = until[ends[part]] - until[std::exchange(begin, ends[part])];
    home[homes[part]] += own;
    cost[2] = std::max(cost[2], own);
  }
  for (double all : home) {
    cost[0] = std::max(cost[0], all);
    cost[1] += all * all;
  }
  return cost;
}

/// The ends of parts with which the most expensive part is as cheap as possible.
std::vector<int> even_ends(const std::vector<double>& until, int parts) {
  const int n = static_cast<int>(until.size()) - 1;

  // best[k][i]: the least possible cost of the most expensive of k parts over the first i;
  // from[k][i]: where the last of these parts begins.
  std::vector<std::vector<double>> best(parts + 1, std::vector<double>(n + 1, 1e300));
  std::vector<std::vector<int>> from(parts + 1, std::vector<int>(n + 1, 0));
  best[0][0] = 0;
  for (int k = 1; k <= parts; ++k)
    for (int i = k; i <= n; ++i)
      for (int j = k - 1; j < i; ++j) {
        const double worst = std::max(best[k - 1][j], until[i] - until[j]);
        if (worst < best[k][i]) best[k][i] = worst, from[k][i] = j;
      }

  // Back from the end, along the choices that were best.
  std::vector<int> ends(parts);
  for (int k = parts, end = n; k > 0; --k) {
    ends[k - 1] = end;
    end = from[k][end];
  }
  return ends;
}

}  // namespace

// Where a home has one part, the even cut is the best. Where it has several, their sum counts:
// starting from the even cut, ends move by one, alone or with their neighbours (the parts between
// them then slide along), as long as that makes it better.
std::vector<Range> cut_by_cost(const std::vector<double>& costs, const std::vector<int>& homes) {
  const int n = static_cast<int>(costs.size()), parts = static_cast<int>(homes.size());
  TUTTI_CHECK(parts >= 1 && parts <= n, "{} parts of {}", parts, n);
  std::vector<double> until(n + 1, 0);
  std::partial_sum(costs.begin(), costs.end(), until.begin() + 1);

  std::vector<int> ends = even_ends(until, parts);
  const bool several = *std::max_element(homes.begin(), homes.end()) + 1 < parts;
  CutCost best = cut_cost(ends, until, homes);

  // Every improvement makes a finite cost smaller, so the search ends.
  for (bool better = several; better;) {
    better = false;
    for (int first = 0; first + 1 < parts; ++first)
      for (int last = first; last + 1 < parts; ++last)
        for (int by : {-1, 1}) {
          std::vector<int> moved = ends;
          for (int part = first; part <= last; ++part) moved[part] += by;
          // No part may become empty.
          if (moved[first] <= (first > 0 ? moved[first - 1] : 0) || moved[last] >= moved[last + 1])
            continue;
          if (const CutCost cost = cut_cost(moved, until, homes); cost < best) {
            best = cost;
            ends = moved;
            better = true;
          }
        }
  }

  std::vector<Range> cuts;
  for (int begin = 0; int end : ends) cuts.push_back({std::exchange(begin, end), end});
  return cuts;
}

}  // namespace tutti
