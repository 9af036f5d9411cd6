// From exact sums of the training records to a factor and a shift per channel.
#include "data/images/scaling.h"

#include <algorithm>
#include <cmath>

#include "data/core/merged.h"

namespace tutti {

void Moments::add(double value, int64_t times) {
  const auto n = static_cast<double>(times);
  sum.add(value * n);
  squares.add(value * value * n);
  low = std::min(low, value);
  high = std::max(high, value);
  count += times;
}

void Moments::merge(const Moments& other) {
  sum.merge(other.sum);
  squares.merge(other.squares);
  low = std::min(low, other.low);
  high = std::max(high, other.high);
  count += other.count;
}

void ByteCounts::add(const uint8_t* values, int64_t plane) {
  for (size_t begin = 0; begin < counts_.size(); begin += 256)
    for (int64_t i = 0; i < plane; ++i) ++counts_[begin + *values++];
}

// A byte has 256 values, so 256 exact additions stand for any number of pixels.
std::vector<Moments> ByteCounts::moments() const {
  std::vector<Moments> all(counts_.size() / 256);
  for (size_t i = 0; i < counts_.size(); ++i)
    if (counts_[i] > 0) all[i / 256].add(static_cast<double>(i % 256), counts_[i]);
  return all;
}

bool needs_moments(ValueScale scale) {
  return scale == ValueScale::kStandardise || scale == ValueScale::kMinMax;
}

std::vector<Scaling> scaling_from(ValueScale scale, std::vector<Moments> mine,
                                  const DataGroup& group, std::vector<std::string>& lines) {
  if (scale == ValueScale::kNone) return {Scaling{}};
  if (scale == ValueScale::kUnit) return {Scaling{1.0F / 255, 0}};

  // Every rank gets the same sums, and with them the same scaling.
  const std::vector<Moments> all = merged(std::move(mine), group);
  std::vector<Scaling> scaling;
  for (size_t c = 0; c < all.size(); ++c) {
    const Moments& m = all[c];
    const double n = static_cast<double>(std::max<int64_t>(m.count, 1)), mean = m.sum.value() / n;
    // A constant channel has no deviation; what rounding leaves of one must not be divided by.
    const double deviation =
        m.high > m.low ? std::sqrt(std::max(0.0, m.squares.value() / n - mean * mean)) : 0;
    const bool standardise = scale == ValueScale::kStandardise;

    // (value - offset) / range, as one multiplication and one addition.
    const double range = standardise ? deviation : m.high - m.low;
    const double factor = range > 0 ? 1 / range : 1;
    scaling.push_back(
        {static_cast<float>(factor), static_cast<float>(-(standardise ? mean : m.low) * factor)});
    lines.push_back(fmt::format("channel {}: mean {:.6g}, deviation {:.6g}, from {:.6g} to {:.6g}",
                                c, mean, deviation, m.low, m.high));
  }
  return scaling;
}

}  // namespace tutti
