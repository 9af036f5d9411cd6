// Reads a curve from the lines of RUN/metrics.jsonl. An incomplete last line is what a killed
// process leaves, and is ignored.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "observe/plot.h"

namespace tutti {

namespace {

using nlohmann::json;
using Points = std::vector<std::pair<double, double>>;

// A step that comes again (after a resume) replaces what was read from it on.
void append(Points& points, double step, double value) {
  while (!points.empty() && points.back().first >= step) points.pop_back();
  points.emplace_back(step, value);
}

/// Visits the numbers that an event offers for drawing, by name. The held-out loss is called
/// "loss", as in training.
template <typename Visit>
void numbers_of(const json& event, const Visit& visit) {
  for (const auto& [name, value] : event.items())
    if (value.is_number() && name != "step") visit(name == "held_out_loss" ? "loss" : name, value);
  if (const auto metrics = event.find("metrics"); metrics != event.end())
    for (const auto& [name, value] : metrics->items())
      if (value.is_number() && !(name == "loss" && event.contains("held_out_loss")))
        visit(name, value);
  if (const auto baseline = event.find("baseline"); baseline != event.end())
    if (const json& loss = baseline->at("loss"); loss.is_number()) visit("baseline", loss);
}

}  // namespace

Curve read_curve(const std::string& run, const std::string& metric) {
  const std::string path = run + "/metrics.jsonl";
  if (!is_folder(run)) throw Error(fmt::format("{} is no folder of a run", run));
  if (!path_exists(path))
    throw Error(fmt::format("{} has no metrics.jsonl: it is no run's folder", run));
  const std::string text = read_file(path);

  // The curve is named like the run's folder, also if it is given as "." or with a slash at
  // its end.
  Curve curve;
  auto folder = std::filesystem::path(run).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  curve.name = folder.filename() == "."
                   ? std::filesystem::absolute(run).lexically_normal().parent_path().filename()
                   : folder.filename();

  // Other metrics are collected by name, for the message if there is none of the wanted one.
  std::set<std::string> offered;
  size_t number = 0;
  for (size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    ++number;
    try {
      const json event = json::parse(std::string_view(text).substr(begin, end - begin));
      const std::string kind = event.at("event");
      if (kind != "step" && kind != "eval") continue;
      const double step = event.at("step");
      numbers_of(event, [&](const std::string& name, const json& value) {
        if (name != metric)
          offered.insert(name);
        else
          append(kind == "step" ? curve.training : curve.held_out, step, value);
      });
    } catch (const json::exception&) {
      throw Error(fmt::format("{}:{}: not a line of metrics; remove that line", path, number));
    }
  }

  // A name that is not there is most often mistyped, so the message has those that are.
  if (!curve.training.empty() || !curve.held_out.empty()) return curve;
  if (offered.empty())
    throw Error(fmt::format("{} has no metrics yet: no step was committed", run));
  throw Error(
      fmt::format("{} has no metric \"{}\"; it has {}", run, metric, fmt::join(offered, ", ")));
}

}  // namespace tutti
