// Where one double is not enough, a value is the sum of two: `high`, which is the sum rounded, and
// `low`, which is what that leaves out. So the results below are rounded once, but for an error of
// a few tenths of a unit.
#include "base/portable_math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tutti::portable {

namespace {

struct Two {
  double high, low;
};

/// a + b without an error.
Two add(double a, double b) {
  const double sum = a + b, of_b = sum - a;
  return {sum, (a - (sum - of_b)) + (b - of_b)};
}
/// The same where |a| >= |b|.
Two add_smaller(double a, double b) {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

/// a b without an error, by halves of 26 bits each (Dekker).
Two multiply(double a, double b) {
  constexpr double kSplit = 134217729;  // 2^27 + 1
  const double large_a = a * kSplit, large_b = b * kSplit;
  const double a1 = large_a - (large_a - a), b1 = large_b - (large_b - b);
  const double a2 = a - a1, b2 = b - b1, product = a * b;
  return {product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2};
}

template <int n>
double polynomial(double x, const double (&c)[n]) {
  double y = c[n - 1];
  for (int i = n - 2; i >= 0; --i) y = y * x + c[i];
  return y;
}

/// x rounded to a whole number, for |x| < 2^51.
double whole(double x) {
  constexpr double kUlpOfOne = 0x1.8p52;
  return (x + kUlpOfOne) - kUlpOfOne;
}

/// 2^n, which is a normal number.
double power_of_two(int64_t n) {
  return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52);
}

// ln 2 and pi / 2 in parts. All but the last have 32 bits, so that their products with whole
// numbers below 2^21 are exact.
constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kQuarter1 = 0x1.921fb544p+0, kQuarter2 = 0x1.0b4611a6p-34,
                 kQuarter3 = 0x1.3198a2e037073p-69;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kLeastNormal = std::numeric_limits<double>::min();

/// The logarithm of a normal x: x = 2^e m with m within [sqrt(1/2), sqrt(2)], and with
/// s = (m - 1) / (m + 1) it is e ln 2 + 2 (s + s^3 / 3 + s^5 / 5 + ...).
Two log_of(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  auto e = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000);
  if (m > 1.4142135623730951) m *= 0.5, ++e;

  // s in two parts, from the remainder of its division.
  const double f = m - 1;
  const Two below = add(m, 1);
  const double s = f / below.high;
  const Two back = multiply(s, below.high);
  const double s_low = (((f - back.high) - back.low) - s * below.low) / below.high;

  // The terms after the first are at most a hundredth of it.
  constexpr double c[] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11,
                          2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
  const double square = s * s, rest = s * square * polynomial(square, c);

  const auto n = static_cast<double>(e);
  const Two sum = add(n * kLn2High, 2 * s);
  return add_smaller(sum.high, sum.low + (2 * s_low + rest + n * kLn2Low));
}

/// e^(x.high + x.low): 2^n e^r with |r| <= ln 2 / 2, and e^r by its series.
double exp_of(Two x) {
  if (std::isnan(x.high)) return x.high;
  if (x.high > 709.78) return kInfinity;
  if (x.high < -706.8) return 0;

  const double n = whole(x.high * 1.4426950408889634);
  const Two r = add(x.high - n * kLn2High, x.low - n * kLn2Low);
  constexpr double c[] = {1.0 / 2,          1.0 / 6,        1.0 / 24,        1.0 / 120,
                          1.0 / 720,        1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
                          1.0 / 3628800,    1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800,
                          1.0 / 87178291200};
  const double rest = r.high * r.high * polynomial(r.high, c);
  const Two sum = add(1, r.high);
  const double y = sum.high + (sum.low + (rest + r.low + r.low * r.high));

  // In two factors, since 2^n alone may be too large.
  const auto whole_n = static_cast<int64_t>(n), half = whole_n / 2;
  return y * power_of_two(half) * power_of_two(whole_n - half);
}

/// An angle as n quarters of a turn and a remainder of at most an eighth.
struct Angle {
  int64_t quarters;
  Two rest;
};
Angle angle_of(double x) {
  const double n = whole(x * 0.6366197723675814);
  const Two rest = add(x - n * kQuarter1, -n * kQuarter2);
  return {static_cast<int64_t>(n), add_smaller(rest.high, rest.low - n * kQuarter3)};
}

double sine_of(Two r) {
  constexpr double c[] = {
      -1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
      -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
  const double square = r.high * r.high;
  return r.high + (r.high * square * polynomial(square, c) + r.low * (1 - 0.5 * square));
}

double cosine_of(Two r) {
  constexpr double c[] = {1.0 / 24,        -1.0 / 720,         1.0 / 40320,         -1.0 / 3628800,
                          1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};
  const Two square = multiply(r.high, r.high);
  const Two start = add_smaller(1, -0.5 * square.high);
  const double rest = square.high * square.high * polynomial(square.high, c);
  return start.high + (start.low + (rest - 0.5 * square.low - r.high * r.low));
}

}  // namespace

double exp(double x) { return exp_of({x, 0}); }

double log(double x) {
  if (std::isnan(x) || x == kInfinity) return x;
  if (x < kLeastNormal) return x <= -kLeastNormal ? kNan : -kInfinity;
  return log_of(x).high;
}

double log1p(double x) {
  if (std::isnan(x) || x == kInfinity) return x;
  const Two sum = add(1, x);
  if (sum.high < kLeastNormal) return sum.high < 0 ? kNan : -kInfinity;
  const Two log = log_of(sum.high);
  return log.high + (log.low + sum.low / sum.high);
}

double pow(double x, double y) {
  if (y == 0 || x == 1) return 1;
  if (std::isnan(x) || std::isnan(y) || x <= -kLeastNormal) return kNan;
  if (x < kLeastNormal) return y > 0 ? 0 : kInfinity;
  if (x == kInfinity) return y > 0 ? kInfinity : 0;
  const Two log = log_of(x);
  const Two product = multiply(y, log.high);
  return exp_of({product.high, product.low + y * log.low});
}

Waves sin_cos(double x) {
  if (!std::isfinite(x) || std::abs(x) > 1e15) return {kNan, kNan};
  const Angle angle = angle_of(x);
  const double s = sine_of(angle.rest), c = cosine_of(angle.rest);

  // A quarter of a turn makes the sine the cosine, and the cosine the sine's opposite.
  switch (angle.quarters & 3) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}
double sin(double x) { return sin_cos(x).sine; }
double cos(double x) { return sin_cos(x).cosine; }

}  // namespace tutti::portable
