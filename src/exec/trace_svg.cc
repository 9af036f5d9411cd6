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

/// Compute is in blues and greens, communication in warm tones, so that what overlaps can be seen
/// without reading.
constexpr std::array<LegendEntry, kOps> kColours = {{{"Load", "#a9b4c0"},
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
  for (const LegendEntry& kind : kColours) {
    if (name == kind.name) return kind.fill;
  }
  return "#999999";
}

/// The kinds that the step has. A legend of all of them would not fit on one line.
std::vector<LegendEntry> kinds_of(const std::vector<TraceEvent>& events) {
  std::vector<LegendEntry> used;
  for (const LegendEntry& kind : kColours)
    if (std::any_of(events.begin(), events.end(),
                    [&](const TraceEvent& e) { return e.name == kind.name; }))
      used.push_back(kind);
  return used;
}

/// The events of one step in the order in which they began, since later bars are drawn over earlier
/// ones.
std::vector<TraceEvent> events_of(const std::vector<TraceEvent>& all, uint64_t step) {
  std::vector<TraceEvent> events;
  for (const TraceEvent& e : all) {
    if (e.step == step) events.push_back(e);
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const auto& a, const auto& b) { return a.begin_us < b.begin_us; });
  return events;
}

Row row_of(const TraceEvent& e) {
  return Row{e.rank, e.queue != queue_name(QueueUse::kCompute), e.queue};
}

/// The rows from top to bottom: where each is, and what is drawn below and above its bars.
struct Rows {
  std::map<Row, double> top;
  std::string grounds, labels;
  double bottom = kTop;
};

/// Ranks come in order, with a gap between them. A rank's name is at its first row.
Rows rows_of(const std::vector<TraceEvent>& events) {
  Rows rows;
  for (const TraceEvent& e : events) rows.top.emplace(row_of(e), 0);

  // The map is sorted by rank, so a rank begins where it differs from the row before.
  double y = kTop;
  int rank = std::get<0>(rows.top.begin()->first) - 1;
  for (auto& [row, top] : rows.top) {
    const auto& [row_rank, communicates, queue] = row;
    if (row_rank != rank) {
      if (y > kTop) y += kRankGap;
      rows.labels += text_at(24, y + kRow / 2 + 4.5, fmt::format("rank {}", row_rank), kInk,
                             " font-weight=\"600\"");
      rank = row_rank;
    }
    top = y;
    rows.labels += text_at(kLeft - 12, y + kRow / 2 + 4.5, queue, kFaint, " text-anchor=\"end\"");
    rows.grounds += fmt::format(
        "<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" rx=\"3\" fill=\"#f3f5f7\"/>\n",
        kLeft, y, kPlot, kRow);
    y += kRow + kGap;
  }
  rows.bottom = y + 4;
  return rows;
}

/// One bar per instruction, at least 0.6 pixels wide, so that none vanishes. Its name shows under
/// the pointer.
std::string bars_of(const std::vector<TraceEvent>& events, const Rows& rows, double origin,
                    double scale) {
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
        x, rows.top.at(row_of(e)), drawn, kRow, width > 6 ? " rx=\"2\"" : "", fill_of(e.name),
        escaped(e.detail), (e.end_us - e.begin_us) / 1000);
  }
  return bars;
}

}  // namespace

std::string svg_trace(const std::vector<TraceEvent>& all, uint64_t step) {
  const std::vector<TraceEvent> events = events_of(all, step);
  const std::string title = fmt::format("Step {}", step);
  if (events.empty()) {
    return opening(kWidth, 80) +
           text_at(24, 46, title + ": no instruction was recorded", kInk, " font-size=\"15\"") +
           "</svg>\n";
  }

  // The time axis goes from the first instruction to the end of the last. It has at least a
  // nanosecond, since the scale divides by it. Times are in microseconds, its numbers in
  // milliseconds.
  const double origin = events.front().begin_us;
  double end = origin;
  for (const TraceEvent& e : events) end = std::max(end, e.end_us);
  const double span = std::max(end - origin, 1e-3);
  const double scale = kPlot / span;
  const Rows rows = rows_of(events);
  const TimeAxis axis = time_axis({kLeft, kTop, rows.bottom, span, 1000, scale});

  // What is drawn later is on top: grounds and grid lines, then bars, then labels.
  const LegendStyle style{.indent = 18, .letter = 7.2, .gap = 22, .more = ""};
  return opening(kWidth, rows.bottom + 34) +
         text_at(24, 32, title, kInk, " font-size=\"17\" font-weight=\"600\"") +
         text_at(kWidth - kRight, 32, fmt::format("{:.4g} ms", span / 1000), kFaint,
                 " font-size=\"14\" text-anchor=\"end\"") +
         legend(kLeft, kinds_of(events), style) + rows.grounds + axis.lines +
         bars_of(events, rows, origin, scale) + rows.labels + axis.numbers +
         text_at(kLeft - 12, rows.bottom + 18, "ms", kFaint, " text-anchor=\"end\"") + "</svg>\n";
}

}  // namespace tutti
