// Draws of a seed, and the small changes that are made by them: each says what it did, or nothing
// where it changed nothing.
#pragma once

#include <fmt/format.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plan/ir/program.h"

namespace tutti::test {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  uint64_t below(uint64_t n) { return random_() % n; }
  template <typename T>
  T& pick(std::vector<T>& list) {
    return list[below(list.size())];
  }
  template <typename T>
  static void erase(std::vector<T>& list, size_t at) {
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
  }
  std::string retarget(int& value, int first, int size, const std::string& what) {
    const int old = value;
    value = first + static_cast<int>(below(static_cast<uint64_t>(size)));
    return value == old ? "" : fmt::format("retarget {} from {} to {}", what, old, value);
  }
  template <typename E>
  std::string another(E& value, int count, const std::string& what) {
    int number = static_cast<int>(value);
    const std::string said = retarget(number, 0, count, what);
    value = static_cast<E>(number);
    return said;
  }
  std::string shift(Range& range, const std::string& what) {
    const int64_t by = below(2) == 0 ? 64 : -64;
    const uint64_t kind = below(3);
    if (kind != 1) range.begin += by;
    if (kind != 0) range.end += by;
    return fmt::format("shift {} of {} by {}",
                       kind == 0   ? "the begin"
                       : kind == 1 ? "the end"
                                   : "all",
                       what, by);
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace tutti::test
