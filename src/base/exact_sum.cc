// The sum is limbs_[i] * 2^(kLowestBit + 32 * i), added over all limbs: 23 limbs cover the bits
// from 2^-360 to 2^376, enough for many terms of 2^320. Integer additions are associative, which is
// the whole trick.
#include "base/exact_sum.h"

#include <bit>
#include <cmath>
#include <limits>

namespace tutti {

namespace {

// Bits of flags_; terms above kTooLarge would not fit into the limbs.
constexpr uint32_t kNan = 1, kPlusInfinity = 2, kMinusInfinity = 4;
constexpr int kPayload = 32;
constexpr int64_t kMask = (int64_t{1} << kPayload) - 1;
constexpr double kTooLarge = 0x1p320;
// Each addition puts less than 2^32 into a limb, so before a resolve() there is less than
// 2^62 in it.
constexpr uint32_t kMaxPending = 1u << 30;

}  // namespace

void ExactSum::add(double term) {
  if (std::isnan(term)) {
    flags_ |= kNan;
    return;
  }
  if (std::abs(term) > kTooLarge) {
    flags_ |= term > 0 ? kPlusInfinity : kMinusInfinity;
    return;
  }

  if (pending_ >= kMaxPending) resolve();
  ++pending_;

  // |term| = mantissa * 2^exponent; `at` is that exponent counted from limb 0's lowest bit.
  const uint64_t bits = std::bit_cast<uint64_t>(term);
  const int biased = static_cast<int>(bits >> 52 & 0x7ff);
  uint64_t mantissa = bits & ((uint64_t{1} << 52) - 1);
  if (biased != 0) mantissa |= uint64_t{1} << 52;
  int at = (biased == 0 ? 1 : biased) - 1075 - kLowestBit;

  // What is below the lowest bit is cut off; a shift by 64 or more would be undefined.
  if (at < 0) {
    mantissa = at > -64 ? mantissa >> -at : 0;
    at = 0;
  }
  if (mantissa == 0) return;

  // The mantissa, shifted to its place, covers at most three limbs. Each gets its 32 bits with
  // the term's sign.
  auto rest = static_cast<unsigned __int128>(mantissa) << at % kPayload;
  const int64_t sign = bits >> 63 ? -1 : 1;
  for (int limb = at / kPayload; rest != 0; ++limb, rest >>= kPayload) {
    limbs_[limb] += sign * static_cast<int64_t>(static_cast<uint64_t>(rest) & kMask);
  }
}

void ExactSum::resolve() {
  // Afterwards every limb but the last is in [0, 2^32), and the last one carries the sign. Every
  // sum has exactly one such form. The shift is arithmetic, so negative limbs borrow.
  for (int i = 0; i + 1 < kLimbs; ++i) {
    const int64_t carry = limbs_[i] >> kPayload;
    limbs_[i] -= carry << kPayload;
    limbs_[i + 1] += carry;
  }
  pending_ = 0;
}

void ExactSum::merge(const ExactSum& other) {
  // Both are resolved first, so that no limb can overflow.
  ExactSum terms = other;
  terms.resolve();
  resolve();
  for (int i = 0; i < kLimbs; ++i) limbs_[i] += terms.limbs_[i];
  flags_ |= terms.flags_;
  resolve();
}

bool ExactSum::operator==(const ExactSum& other) const {
  ExactSum a = *this, b = other;
  a.resolve();
  b.resolve();
  return a.limbs_ == b.limbs_ && a.flags_ == b.flags_;
}

double ExactSum::value() const {
  if ((flags_ & kNan) != 0 || flags_ == (kPlusInfinity | kMinusInfinity)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (flags_ != 0) {
    return flags_ == kPlusInfinity ? std::numeric_limits<double>::infinity()
                                   : -std::numeric_limits<double>::infinity();
  }

  // The magnitude is rounded, then gets its sign: rounding to nearest is symmetric.
  ExactSum magnitude = *this;
  magnitude.resolve();
  const bool negative = magnitude.limbs_[kLimbs - 1] < 0;
  if (negative) {
    for (auto& limb : magnitude.limbs_) limb = -limb;
    magnitude.resolve();
  }

  int top = kLimbs - 1;
  while (top > 0 && magnitude.limbs_[top] == 0) --top;

  // The three highest limbs have at least 65 significant bits, more than a double. A sticky lowest
  // bit stands for everything below, so the conversion to double (to nearest, ties to even) rounds
  // the whole sum once.
  const auto limb = [&](int i) { return i < 0 ? 0 : static_cast<uint64_t>(magnitude.limbs_[i]); };
  auto head = static_cast<unsigned __int128>(limb(top)) << 2 * kPayload;
  head |= limb(top - 1) << kPayload | limb(top - 2);
  for (int i = 0; i < top - 2; ++i) head |= magnitude.limbs_[i] != 0 ? 1 : 0;
  const double result = std::ldexp(static_cast<double>(head), kLowestBit + kPayload * (top - 2));
  return negative ? -result : result;
}

}  // namespace tutti
