// Loss curves of several runs on one picture.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tutti {

struct Curve {
  std::string name;                                  ///< of the run
  std::vector<std::pair<double, double>> training;   ///< (step, loss); drawn smoothed over a faint original
  std::vector<std::pair<double, double>> held_out;   ///< (step, metric); drawn as dots joined by a line
};

/// An SVG with axes, a legend and a colour per run. `metric` names what is drawn ("loss": training and held-out; others:
/// held-out only). Values that are not finite are left out; a picture without any says so.
std::string plot_svg(const std::vector<Curve>& curves, const std::string& metric);

/// From RUN/metrics.jsonl. Throws Error naming the run: no run, no metrics, a metric that it does not have (with those
/// that it has).
Curve read_curve(const std::string& run, const std::string& metric);

}  // namespace tutti
