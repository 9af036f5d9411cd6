// Loss curves of several runs on one picture.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tutti {

struct Curve {
  std::string name;  ///< of the run
  /// (step, value), steps ascending; smoothed over a faint original
  std::vector<std::pair<double, double>> training;
  /// (step, value), steps ascending; dots joined by a line
  std::vector<std::pair<double, double>> held_out;
};

/// An SVG with axes, a legend with the last values and a colour per run. `metric` names what is
/// drawn. Values that are not finite are left out; a run, or a picture, without any says so. A
/// million steps make a picture of the same size as a thousand. The y axis is logarithmic where the
/// values span more than a factor of 50.
std::string plot_svg(const std::vector<Curve>& curves, const std::string& metric);

/// From RUN/metrics.jsonl: a number of the step events ("loss", "lr", "gradient_norm") is the
/// training curve, one of the eval events ("loss" is their held_out_loss; "accuracy", ...) the
/// held-out one; "loss" has both. Steps that were done again after a resume replace the old ones.
/// Throws Error naming the run: no run, no metrics, a metric that it does not have (with those that
/// it has).
Curve read_curve(const std::string& run, const std::string& metric);

}  // namespace tutti
