// Sums over (lane, micro) terms as numbers: equal expressions, and only they, have the same
// number (hash consing). Floating-point addition is not associative, so the tree of a sum is part
// of its value.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "grid/grid.h"

namespace tutti {

inline constexpr int kUndefined = -1;  // nothing was written
inline constexpr int kFaulty = -2;     // follows from a fault that has been reported

class Expressions {
 public:
  /// The gradient of one micro-batch. Its first half is negative, so no sum is taken for it.
  int term(int lane, int micro) { return number({-1 - lane, micro}); }
  int sum(int left, int right) {
    if (left == kUndefined || right == kUndefined) return kUndefined;
    if (left == kFaulty || right == kFaulty) return kFaulty;
    return number({left, right});
  }
  /// The text for messages: "((0.0 + 0.1) + 1.0)".
  std::string text(int e) const {
    if (e < 0) return "nothing";
    const auto [left, right] = all_[e];
    if (left < 0) return fmt::format("{}.{}", -1 - left, right);
    return fmt::format("({} + {})", text(left), text(right));
  }
  /// The job's sum: micro-batches of a lane from left to right, lanes over the tree.
  int job(int64_t begin, int64_t end, int micro_batches) {
    if (end - begin > 1) {
      const int64_t middle = begin + tree_left(end - begin);
      const int left = job(begin, middle, micro_batches);
      return sum(left, job(middle, end, micro_batches));
    }
    int e = term(static_cast<int>(begin), 0);
    for (int micro = 1; micro < micro_batches; ++micro)
      e = sum(e, term(static_cast<int>(begin), micro));
    return e;
  }
  /// The job's sum with order = "micro": for each micro-batch the tree over the lanes, these from
  /// left to right.
  int job_by_micro(int64_t lanes, int micro_batches) {
    int e = lanes_of_micro(0, lanes, 0);
    for (int micro = 1; micro < micro_batches; ++micro) e = sum(e, lanes_of_micro(0, lanes, micro));
    return e;
  }

 private:
  int lanes_of_micro(int64_t begin, int64_t end, int micro) {
    if (end - begin == 1) return term(static_cast<int>(begin), micro);
    const int64_t middle = begin + tree_left(end - begin);
    const int left = lanes_of_micro(begin, middle, micro);
    return sum(left, lanes_of_micro(middle, end, micro));
  }
  int number(std::pair<int, int> key) {
    const auto [it, fresh] = numbers_.try_emplace(key, static_cast<int>(all_.size()));
    if (fresh) all_.push_back(key);
    return it->second;
  }
  std::map<std::pair<int, int>, int> numbers_;
  std::vector<std::pair<int, int>> all_;
};

}  // namespace tutti
