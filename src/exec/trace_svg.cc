// Draws the picture of one step: 1200 pixels wide, one row per (rank, queue), a legend above,
// milliseconds below.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "base/text/svg.h"
#include "exec/trace.h"

namespace tutti {

using namespace svg;

namespace {

constexpr double kWidth = 1200, kLeft = 220, kRight = 28, kTop = 92, kRow = 26, kGap = 5,
                 kRankGap = 12;
constexpr double kPlot = kWidth - kLeft - kRight;

// (rank, whether it is not compute, queue): sorted so that compute is the first row of a rank
using Row = std::tuple<int, bool, std::string>;

struct Colour {
  const char* name;
  const char* fill;
};

/// Compute is in blues and greens, communication in warm tones, so that what overlaps can be seen
/// without reading.
constexpr std::array<Colour, kOps> kColours = {{{"Load", "#a9b4c0"},
                                                {"Forward", "#5b8def"},
                                                {"Backward", "#2f5fb3"},
                                                {"Fold", "#49b6a6"},
                                                {"Acquire", "#d9c7a7"},
                                                {"Reduce", "#f2994a"},
                                                {"Norm", "#c58fd6"},
                                                {"Gather", "#f2c94c"},
                                                {"Vote", "#eb5757"},
                                                {"Update", "#5aa846"},
                                                {"Send", "#d9a441"},
                                                {"Recv", "#d9a441"},
                                                {"Exchange", "#e07a5f"},
                                                {"Fetch", "#8d7b68"},
                                                {"Evict", "#b3a290"},
                                                {"Release", "#c9b48f"}}};
static_assert(kColours.back().name != nullptr, "every instruction has a colour");

const char* fill_of(const std::string& name) {
  for (const Colour& c : kColours) {
    if (name == c.name) return c.fill;
  }
  return "#999999";
}

std::string legend(const std::vector<TraceEvent>& events) {
  std::string svg;
  double x = kLeft;
  // Only kinds that the step has. A letter is about 7.2 pixels wide.
  for (const Colour& c : kColours) {
    const bool used = std::any_of(events.begin(), events.end(),
                                  [&](const TraceEvent& e) { return e.name == c.name; });
    if (!used) continue;
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"52\" width=\"12\" height=\"12\" rx=\"2.5\" fill=\"{}\"/>\n", x,
        c.fill);
    svg += text_at(x + 18, 62.5, c.name, kInk, "");
    x += 18 + 7.2 * static_cast<double>(std::string(c.name).size()) + 22;
  }
  return svg;
}

}  // namespace

std::string svg_trace(const std::vector<TraceEvent>& all, uint64_t step) {
  std::vector<TraceEvent> events;
  for (const TraceEvent& e : all) {
    if (e.step == step) events.push_back(e);
  }

  const std::string title = fmt::format("Step {}", step);
  if (events.empty()) {
    return opening(kWidth, 80) +
           text_at(24, 46, title + ": no instruction was recorded", kInk, " font-size=\"15\"") +
           "</svg>\n";
  }

  // Later bars are drawn over earlier ones.
  std::stable_sort(events.begin(), events.end(),
                   [](const auto& a, const auto& b) { return a.begin_us < b.begin_us; });

  // Rows from top to bottom: ranks in order, with a gap between them, and their name at their first
  // row.
  const auto row_of = [](const TraceEvent& e) {
    return Row{e.rank, e.queue != queue_name(QueueUse::kCompute), e.queue};
  };
  std::map<Row, double> rows;  // their y
  for (const TraceEvent& e : events) rows.emplace(row_of(e), 0);
  std::string lines, labels;
  double y = kTop;
  int rank = std::get<0>(rows.begin()->first) - 1;
  for (auto& [row, top] : rows) {
    const auto& [row_rank, communicates, queue] = row;
    if (row_rank != rank) {
      if (y > kTop) y += kRankGap;
      labels += text_at(24, y + kRow / 2 + 4.5, fmt::format("rank {}", row_rank), kInk,
                        " font-weight=\"600\"");
      rank = row_rank;
    }
    top = y;
    labels += text_at(kLeft - 12, y + kRow / 2 + 4.5, queue, kFaint, " text-anchor=\"end\"");
    lines += fmt::format(
        "<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" rx=\"3\" fill=\"#f3f5f7\"/>\n",
        kLeft, y, kPlot, kRow);
    y += kRow + kGap;
  }
  const double bottom = y + 4;

  // The time axis, from the first instruction to the end of the last; at least a
  // nanosecond, to divide by.
  const double origin = events.front().begin_us;
  double end = origin;
  for (const TraceEvent& e : events) end = std::max(end, e.end_us);
  const double span = std::max(end - origin, 1e-3);
  const double scale = kPlot / span;
  const double tick = tick_step(span / 1000);
  for (int k = 0; k * tick <= span / 1000 * (1 + 1e-9); ++k) {
    const double x = kLeft + k * tick * 1000 * scale;
    lines += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\"/>\n", x,
        kTop - 6, bottom, kGrid);
    labels +=
        text_at(x, bottom + 18, fmt::format("{:.6g}", k * tick), kFaint, " text-anchor=\"middle\"");
  }
  labels += text_at(kLeft - 12, bottom + 18, "ms", kFaint, " text-anchor=\"end\"");

  // One bar per instruction, at least 0.6 pixels wide, so that none vanishes; its name
  // shows under the pointer.
  std::string bars;
  for (const TraceEvent& e : events) {
    const double x = kLeft + (e.begin_us - origin) * scale;
    const double width = std::max((e.end_us - e.begin_us) * scale, 0.6);
    // A hairline of background between neighbours, where there is room for one.
    const double drawn = width > 3 ? width - 0.7 : width;
    bars += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\"{} fill=\"{}\"><title>{}, "
        "{:.3f} "
        "ms</title></rect>\n",
        x, rows.at(row_of(e)), drawn, kRow, width > 6 ? " rx=\"2\"" : "", fill_of(e.name),
        escaped(e.detail), (e.end_us - e.begin_us) / 1000);
  }

  return opening(kWidth, bottom + 34) +
         text_at(24, 32, title, kInk, " font-size=\"17\" font-weight=\"600\"") +
         text_at(kWidth - kRight, 32, fmt::format("{:.4g} ms", span / 1000), kFaint,
                 " font-size=\"14\" text-anchor=\"end\"") +
         legend(events) + lines + bars + labels + "</svg>\n";
}

}  // namespace tutti
