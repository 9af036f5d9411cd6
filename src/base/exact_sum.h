// A sum of doubles that does not depend on the order of its terms: a wide fixed-point accumulator.
// Norms, losses and metrics are summed with it, so the vote of a step is one message of constant
// size, whatever the layout, and its bits cannot depend on who added what. (DESIGN 2.6 asks for a
// fixed order of chunk sums; an exact sum needs no order at all.)
#pragma once

#include <array>
#include <cstdint>

namespace tutti {

/// Trivially copyable: travels as bytes. Bits below 2^-360 are cut off (of each term alone, so
/// still orderless); up to 2^31 terms. A larger term than 2^320 counts as infinite; NaN and
/// infinities are sticky.
class ExactSum {
 public:
  void add(double term);
  void merge(const ExactSum& other);
  /// The sum, rounded once; NaN if a NaN was added or infinities of both signs.
  double value() const;
  bool finite() const { return flags_ == 0; }
  /// Whether the sums are equal, however they came about.
  bool operator==(const ExactSum& other) const;

 private:
  // 32 bits of payload in each 64-bit limb; carries wait for resolve()
  static constexpr int kLimbs = 23;
  static constexpr int kLowestBit = -360;  // weight of limb 0's bit 0
  std::array<int64_t, kLimbs> limbs_{};
  uint32_t flags_ = 0;
  uint32_t pending_ = 0;  // additions since carries were last resolved
  void resolve();
};

}  // namespace tutti
