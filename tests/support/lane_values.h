// What the lanes of a test put into a sum: a pure function of (seed, step, lane, element), so that
// each rank knows what all others put in and can write the tree out naively.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "grid/grid.h"

namespace tutti::testing_support {

/// A float of either sign over many magnitudes: sums in another order have other bits.
inline float lane_value(uint64_t seed, uint64_t step, int64_t lane, int64_t i) {
  uint64_t x = seed * 0x9E3779B97F4A7C15ULL + step * 0xBF58476D1CE4E5B9ULL +
               static_cast<uint64_t>(lane) * 0x94D049BB133111EBULL + static_cast<uint64_t>(i);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  x ^= x >> 31;
  const float mantissa = static_cast<float>(static_cast<int32_t>(x >> 32)) * 0x1p-31F;
  return std::ldexp(mantissa, static_cast<int>(x % 24) - 12);
}

/// The tree over lanes [first, first+n), by its definition.
inline float tree_value(uint64_t seed, uint64_t step, int64_t first, int64_t n, int64_t i) {
  if (n == 1) return lane_value(seed, step, first, i);
  const int64_t left = tree_left(n);
  return tree_value(seed, step, first, left, i) + tree_value(seed, step, first + left, n - left, i);
}

/// What a float of a sum should be: the bits of the tree, or any rounding of the sum.
struct WantedSum {
  float tree = 0;
  double exact = 0, magnitude = 0;
  int additions = 0;

  void add(float of_tree) { tree = additions == 0 ? of_tree : tree + of_tree; }
  void add_value(double value) {
    exact += value;
    magnitude += std::fabs(value);
    ++additions;
  }
  bool has_bits(float got) const {
    return std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(tree);
  }
  /// A sum in another order rounds otherwise: by at most one half-ulp of the largest partial sum
  /// for each addition. NaN is close to nothing.
  bool is_close(float got) const {
    return std::fabs(got - exact) <= additions * magnitude * 0x1p-24;
  }
};

}  // namespace tutti::testing_support
