// Runs may have millions of steps, so everything takes time in proportion to their number, and
// placed() leaves a few points for each pixel column: the picture is as small as that of a short
// run.
#include "observe/plot_values.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "base/text/svg.h"

namespace tutti::plot {

namespace {

constexpr double kLogarithmicFrom = 50;

}  // namespace

std::vector<double> Axis::ticks(int most, double least) const {
  std::vector<double> list;
  if (!logarithmic) {
    const double step = std::max(svg::tick_step(high - low, most), least);
    for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k)
      list.push_back(k * step);
    return list;
  }
  const double decades = std::log10(high / low);
  // Ticks at 1, 2 and 5 of every power of ten; over many powers only at some of the powers.
  const double stride = std::max(1.0, svg::tick_step(decades, most));
  for (double power = std::floor(std::log10(low) / stride) * stride; power <= std::log10(high);
       power += stride)
    for (double factor : {1.0, 2.0, 5.0}) {
      const double v = factor * std::pow(10, power);
      if (v >= low * (1 - 1e-9) && v <= high * (1 + 1e-9) && (decades <= 3 || factor == 1))
        list.push_back(v);
    }
  return list;
}

Points drawable(const Points& points) {
  Points kept;
  for (const auto& [x, y] : points)
    if (std::abs(x) < 1e100 && std::abs(y) < 1e100) kept.emplace_back(x, y);  // false for NaN
  return kept;
}

// The sum of each window is made without subtractions, which would drown small values in the
// rounding of large ones: as a suffix sum of the window's older part plus a running sum of what
// came since.
Points smoothed(Points points) {
  const size_t n = points.size(), reach = n / 50;
  if (reach == 0) return points;

  double low = points[0].second, high = low;
  for (const auto& [x, y] : points) low = std::min(low, y), high = std::max(high, y);
  std::vector<double> values(n), older(n);
  for (int twice = 0; twice < 2; ++twice) {
    for (size_t i = 0; i < n; ++i) values[i] = points[i].second;

    size_t border = 0, end = 0;  // ends of the older part and of the window
    double newer = 0;
    for (size_t i = 0; i < n; ++i) {
      const size_t k = std::min(i, reach), begin = i - k;
      for (; end < std::min(n, i + k + 1); ++end) newer += values[end];

      // The older part is used up: all of the window becomes the older part, with its suffix sums.
      if (begin >= border) {
        newer = 0;
        for (size_t at = border = end; at-- > begin;) older[at] = newer += values[at];
        newer = 0;
      }
      const double mean = (older[begin] + newer) / static_cast<double>(end - begin);
      // no mean is outside of the values, but its rounding may be
      points[i].second = std::clamp(mean, low, high);
    }
  }
  return points;
}

Axis steps_of(const std::vector<Run>& runs, double from, double to) {
  Axis axis{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), from,
            to};
  for (const Run& run : runs)
    for (const Points* points : {&run.original, &run.held_out}) {
      if (points->empty()) continue;
      axis.low = std::min(axis.low, points->front().first);
      axis.high = std::max(axis.high, points->back().first);
    }
  if (axis.low >= 0 && axis.low < 0.25 * axis.high) axis.low = 0;
  if (axis.low == axis.high) axis.low -= 1, axis.high += 1;
  return axis;
}

Axis values_of(const std::vector<Run>& runs, double from, double to) {
  Axis axis{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), from,
            to};

  const auto cover = [&axis](double v) {
    axis.low = std::min(axis.low, v), axis.high = std::max(axis.high, v);
  };
  for (const Run& run : runs) {
    for (const Points* points : {&run.smooth, &run.held_out})
      for (const auto& [step, value] : *points) cover(value);

    // The axis covers the original values from the first to the last hundredth of them.
    std::vector<double> values;
    for (const auto& [step, value] : run.original) values.push_back(value);
    if (values.empty()) continue;
    for (const size_t at : {values.size() / 100, values.size() - 1 - values.size() / 100}) {
      std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at),
                       values.end());
      cover(values[at]);
    }
  }

  // A little room above and below. An axis of values that are never negative does not go below 0.
  axis.logarithmic = axis.low > 0 && axis.high > kLogarithmicFrom * axis.low;
  if (axis.logarithmic) {
    const double room = std::pow(axis.high / axis.low, 0.04);
    axis.low /= room, axis.high *= room;
  } else {
    double room = 0.05 * (axis.high - axis.low);
    if (room < 1e-9 * std::max(std::abs(axis.high), 1e-9))
      room = axis.high == 0 ? 1 : 0.05 * std::abs(axis.high);
    const bool natural_zero = axis.low >= 0;
    axis.low -= room, axis.high += room;
    if (natural_zero) axis.low = std::max(axis.low, 0.0);
  }
  return axis;
}

Points placed(const Points& points, const Axis& x, const Axis& y) {
  Points out;
  for (size_t i = 0; i < points.size();) {
    const double column = std::floor(x.at(points[i].first));
    const size_t first = i;
    size_t low = i, high = i;
    for (; i < points.size() && std::floor(x.at(points[i].first)) == column; ++i) {
      if (points[i].second < points[low].second) low = i;
      if (points[i].second > points[high].second) high = i;
    }

    // In the order of the steps, without repeats. Values far outside are clamped, since viewers
    // take no huge coordinates.
    std::array<size_t, 4> chosen{first, std::min(low, high), std::max(low, high), i - 1};
    const auto end = std::unique(chosen.begin(), chosen.end());
    for (auto it = chosen.begin(); it != end; ++it) {
      const double value =
          y.logarithmic ? std::max(points[*it].second, y.low * 1e-3) : points[*it].second;
      out.emplace_back(x.at(points[*it].first),
                       std::clamp(y.at(value), y.to - 2000, y.from + 2000));
    }
  }
  return out;
}

}  // namespace tutti::plot
