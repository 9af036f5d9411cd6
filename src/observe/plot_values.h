// What a plot makes of its runs' values before it draws them: smoothed curves, the ranges of the
// axes, and points in pixels. Pure functions.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace tutti::plot {

/// (step, value), steps ascending; or pixels.
using Points = std::vector<std::pair<double, double>>;

/// How one run's lines look.
struct Style {
  std::string colour, pattern;
};

/// A run, ready to be drawn.
struct Run {
  std::string name;
  Style style;
  Points original, smooth, held_out;
  bool empty() const { return original.empty() && held_out.empty(); }
};

/// Maps values to pixels.
struct Axis {
  double low = 0, high = 1, from = 0, to = 1;  // values and pixels of both ends
  bool logarithmic = false;
  double at(double v) const {
    const double part =
        logarithmic ? std::log(v / low) / std::log(high / low) : (v - low) / (high - low);
    return from + part * (to - from);
  }
  /// The values of the ticks: about `most` of them, and no closer than `least`.
  std::vector<double> ticks(int most, double least = 0) const;
};

/// The points without those that no picture can show.
Points drawable(const Points& points);
/// The mean of up to k values on either side, applied twice; k is a fiftieth of the run. Near the
/// start only as many as there are on the left are taken, so that the steep beginning of a curve is
/// not flattened.
Points smoothed(Points points);

/// The horizontal axis, between two pixels: from the first step to the last of any run. It begins
/// at 0 if that costs little room.
Axis steps_of(const std::vector<Run>& runs, double from, double to);
/// The vertical axis: all smoothed and held-out values, and all original ones but the outermost
/// hundredth on either side. It is logarithmic if the values span more than a factor of 50.
Axis values_of(const std::vector<Run>& runs, double from, double to);

/// The points in pixels, thinned out: of every pixel column the first, lowest, highest and last
/// point, which is all that a screen shows of them.
Points placed(const Points& points, const Axis& x, const Axis& y);

}  // namespace tutti::plot
