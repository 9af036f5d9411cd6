// Draws the loss curves of several runs in one picture.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tutti {

/// What one run has of a metric.
struct Curve {
  std::string name;  ///< of the run
  /// (step, value), steps ascending; drawn smoothed over a faint original
  std::vector<std::pair<double, double>> training;
  /// (step, value), steps ascending; drawn as dots joined by a line
  std::vector<std::pair<double, double>> held_out;
};

/// An SVG with axes, a colour per run, and a legend with the last values. `metric` names what is
/// drawn. Values that are not finite are left out; a run, or a picture, without any values says so.
/// A million steps make a picture of the same size as a thousand. The y axis is logarithmic if the
/// values span more than a factor of 50.
std::string plot_svg(const std::vector<Curve>& curves, const std::string& metric);

/// Reads a curve from RUN/metrics.jsonl. A number of the step events ("loss", "lr",
/// "gradient_norm") is the training curve, one of the eval events ("loss" is their held_out_loss;
/// "accuracy", ...) the held-out one; "loss" has both. Steps that were done again after a resume
/// replace the old ones. Throws Error naming the run if it is no run, has no metrics, or does not
/// have this metric (with those that it has).
Curve read_curve(const std::string& run, const std::string& metric);

}  // namespace tutti
