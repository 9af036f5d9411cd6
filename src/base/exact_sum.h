// A sum of doubles that does not depend on the order of its terms: a wide fixed-point accumulator
// (a superaccumulator). Norms, losses and metrics are summed with it, so the vote of a step is one
// message of constant size whatever the layout, and its bits cannot depend on who added what.
#pragma once

#include <array>
#include <cstdint>

namespace tutti {

/// Trivially copyable, so it travels as bytes. It takes up to 2^31 terms. Bits below 2^-360 are cut
/// off, from each term by itself, so the order still does not matter. A term larger than 2^320
/// counts as infinite; NaN and infinities stay.
class ExactSum {
 public:
  void add(double term);
  void merge(const ExactSum& other);
  /// The sum, rounded once; NaN if a NaN was added, or infinities of both signs.
  double value() const;
  bool finite() const { return flags_ == 0; }
  /// Whether the sums are equal, however they came about.
  bool operator==(const ExactSum& other) const;

 private:
  // Each 64-bit limb has 32 bits of payload; the others hold carries that wait for resolve().
  static constexpr int kLimbs = 23;
  static constexpr int kLowestBit = -360;  // weight of limb 0's bit 0, as an exponent
  std::array<int64_t, kLimbs> limbs_{};
  uint32_t flags_ = 0;
  uint32_t pending_ = 0;  // additions since carries were last resolved
  // Moves carries up: afterwards equal sums have equal limbs.
  void resolve();
};

}  // namespace tutti
