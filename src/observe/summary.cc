// The texts of single events, made from the events' fields alone.
#include "observe/summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/text/lists.h"
#include "config/job_parts.h"
#include "eval/metrics.h"

namespace tutti {

namespace {

using nlohmann::json;

// The number of that name, or `otherwise` if there is none.
double number(const json& object, const char* name, double otherwise) {
  const auto at = object.find(name);
  return at != object.end() && at->is_number() ? at->get<double>() : otherwise;
}

/// The metrics of a report that its line shows, in the order of their rows.
std::vector<std::string> headlines(const json& metrics) {
  return names_where<MetricPart>([&](const MetricPart& part) {
    const auto value = metrics.find(part.name);
    return part.headline && value != metrics.end() && value->is_number();
  });
}

/// The seconds per kind of work, in the order in which a step does them, then all others.
std::vector<std::pair<std::string, double>> in_order(const json& seconds) {
  std::vector<std::pair<std::string, double>> list;
  const char* order[] = {"load", "forward", "backward", "reduce",
                         "wait", "update",  "evaluate", "save"};
  for (const char* kind : order)
    if (seconds.contains(kind)) list.emplace_back(kind, seconds.at(kind));
  for (const auto& [kind, n] : seconds.items())
    if (std::find(std::begin(order), std::end(order), kind) == std::end(order))
      list.emplace_back(kind, n);
  return list;
}

/// A line per kind of work with a bar of its share. Reductions have a thread of their own; what the
/// others had to wait for them is `wait`. So the shares of all others add up to the whole time.
std::string time_text(const json& seconds) {
  const auto kinds = in_order(seconds);
  double all = 0;
  size_t width = 0;
  for (const auto& [kind, n] : kinds)
    all += kind == "reduce" ? 0 : n, width = std::max(width, kind.size());
  std::string text;
  for (const auto& [kind, n] : kinds) {
    const double share = all > 0 ? n / all : 0;
    std::string bar;
    for (int i = 0; i < static_cast<int>(std::lround(share * 40)); ++i) bar += "▪";
    text += fmt::format("\n{:<8}{:<{}}  {:>9.2f} s  {:>5.1f} %{}{}{}", text.empty() ? "time" : "",
                        kind, width, n, 100 * share, bar.empty() ? "" : "  ", bar,
                        kind == "reduce" ? "  alongside the others" : "");
  }
  return text;
}

}  // namespace

std::string short_count(double n) {
  if (n >= 1e12) return fmt::format("{:.2f} T", n / 1e12);
  if (n >= 1e9) return fmt::format("{:.2f} G", n / 1e9);
  if (n >= 1e6) return fmt::format("{:.2f} M", n / 1e6);
  if (n >= 1e3) return fmt::format("{:.1f} k", n / 1e3);
  return fmt::format("{:.0f}", n);
}

std::string short_duration(double seconds) {
  auto s = static_cast<int64_t>(std::llround(seconds));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

std::string data_text(const json& e) {
  const auto records = [&](const char* part) { return number(e, part, 0); };
  const auto said = [](double n) { return n < 1e7 ? fmt::format("{:.0f}", n) : short_count(n); };
  std::string text = fmt::format("data    {} records, {} held out", said(records("records")),
                                 said(records("held_out")));
  if (records("test") > 0) text += fmt::format(", {} for the test", said(records("test")));
  if (records("skipped") > 0) text += fmt::format("; {} skipped", said(records("skipped")));

  // Lists and tables are indented under the first line.
  for (const char* list : {"faults", "statistics"})
    for (const std::string& line : first_few(e.value(list, std::vector<std::string>())))
      text += fmt::format("\n        {}", line);
  if (const auto skew = e.find("skew");
      skew != e.end() && skew->is_string() && !skew->get<std::string>().empty()) {
    std::string lines = skew->get<std::string>();
    while (lines.ends_with('\n')) lines.pop_back();
    for (size_t at = 0; (at = lines.find('\n', at)) != std::string::npos; at += 9)
      lines.replace(at, 1, "\n        ");
    text += "\n        " + lines;
  }
  return text;
}

std::string evaluation_text(const json& e) {
  const double loss = number(e, "held_out_loss", NAN);
  std::string text =
      fmt::format("step {:>5}   held-out loss {:.4f}", e.at("step").get<int64_t>(), loss);

  // The most telling metrics of all tasks; a report has those of its own.
  if (const auto metrics = e.find("metrics"); metrics != e.end())
    for (const std::string& name : headlines(*metrics))
      text += fmt::format("   {} {:.4f}", name, metrics->at(name).get<double>());

  // What the loss is compared with, where the job names something.
  if (const auto baseline = e.find("baseline"); baseline != e.end()) {
    const double other = number(*baseline, "loss", NAN);
    text += fmt::format("   {} {:.4f}   {:.4f} nats {}", baseline->at("name").get<std::string>(),
                        other, std::abs(other - loss), loss < other ? "below" : "above");
  }
  return text;
}

std::string test_text(const json& e) {
  // The two most important numbers get lines of their own; the table has the rest.
  json metrics = e.at("metrics");
  std::vector<std::string> first = headlines(metrics);
  first.resize(std::min<size_t>(first.size(), 1));
  if (metrics.contains("loss")) first.emplace_back("loss");
  std::string text;
  for (const std::string& name : first) {
    text += fmt::format("{}test {} {:.4f}", text.empty() ? "" : "\n", name,
                        number(metrics, name.c_str(), NAN));
    metrics.erase(name);
  }
  std::string table = metrics_table(metrics, e.value("classes", std::vector<std::string>()));
  if (!table.empty()) table.pop_back();
  return table.empty() ? text : text + (text.empty() ? "" : "\n") + table;
}

std::string end_text(const json& e, int64_t steps, int64_t tokens_per_step,
                     const std::string& unit) {
  std::vector<std::string> kinds;
  for (const auto& [kind, n] : e.at("peak_bytes").items())
    if (kind != "total") kinds.push_back(fmt::format("{} {}", kind, bytes_text(n.get<double>())));
  const double seconds = e.at("seconds");
  const double tokens = static_cast<double>(steps) * static_cast<double>(tokens_per_step);
  std::string text = fmt::format(
      "{} at step {} after {}: {} {}/s; peak memory of rank 0 {} ({}); loader stall {:.2f} %",
      e.at("stopped").get<bool>() ? "stopped" : "finished", e.at("step").get<int64_t>(),
      short_duration(seconds), short_count(seconds > 0 ? tokens / seconds : 0), unit,
      bytes_text(e.at("peak_bytes").at("total").get<double>()), fmt::join(kinds, ", "),
      seconds > 0 ? 100 * number(e, "loader_stall_seconds", 0) / seconds : 0);

  // Older or shorter runs may lack what follows.
  if (const auto time = e.find("seconds_by_kind"); time != e.end()) text += time_text(*time);
  std::vector<std::string> speed;
  if (e.contains("samples_per_second"))
    speed.push_back(
        fmt::format("{} samples/s in the steps", short_count(number(e, "samples_per_second", 0))));
  if (e.contains("matmul_share"))
    speed.push_back(
        fmt::format("{:.1f} % of the matmul limit", 100 * number(e, "matmul_share", 0)));
  if (!speed.empty()) text += fmt::format("\nspeed   {}", fmt::join(speed, ", "));
  return text;
}

}  // namespace tutti
