// The picture: axes and curves, with a legend next to them, or in columns below them if there are
// many runs. Up to 8 runs have Okabe and Ito's colours; more have hues at equal distances,
// alternately darker and lighter, and lines in one of four patterns, so that neighbours in hue
// differ in both.
#include "observe/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/text/svg.h"
#include "observe/plot_values.h"

namespace tutti {

using namespace plot;
using namespace svg;

namespace {

constexpr double kWidth = 1160, kLeft = 76, kTop = 64, kPlotHeight = 470,
                 kBottom = kTop + kPlotHeight;
// where the plot ends on the right, with the legend next to it and below it
constexpr double kNextTo = 836, kBelow = 1136;
constexpr double kEntryWidth = 284, kEntryHeight = 48;  // of the legend
constexpr size_t kNameWidth = 26;                       // characters
/// Okabe and Ito's colours, which are told apart with any kind of colour vision; their yellow, too
/// light on white, is darkened.
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#8c7a00", "#3d3d3d"};
// the first is a solid line
constexpr std::array<const char*, 4> kPatterns = {"", "10 4", "2 4", "12 4 2 4"};

/// A colour from OKLCH, in which equal distances of hue look alike.
std::string colour_of(double lightness, double chroma, double hue) {
  const double a = chroma * std::cos(hue), b = chroma * std::sin(hue);

  // OKLab to cone responses, to linear sRGB, to bytes.
  const double l = std::pow(lightness + 0.3963377774 * a + 0.2158037573 * b, 3);
  const double m = std::pow(lightness - 0.1055613458 * a - 0.0638541728 * b, 3);
  const double s = std::pow(lightness - 0.0894841775 * a - 1.2914855480 * b, 3);
  const auto byte = [](double linear) {
    const double x = std::clamp(linear, 0.0, 1.0);
    return std::lround(255 * (x <= 0.0031308 ? 12.92 * x : 1.055 * std::pow(x, 1 / 2.4) - 0.055));
  };
  return fmt::format("#{:02x}{:02x}{:02x}",
                     byte(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
                     byte(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
                     byte(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s));
}

/// The style of run i of n.
Style style_of(size_t i, size_t n) {
  if (n <= kColours.size()) return {kColours[i], ""};
  const double hue = 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(n);
  return {colour_of(i % 2 == 0 ? 0.50 : 0.68, 0.14, hue), kPatterns[i % kPatterns.size()]};
}

std::string dashes(const Style& style) {
  return style.pattern.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", style.pattern);
}

bool legend_below(size_t runs) { return runs > kColours.size(); }
double right_of(size_t runs) { return legend_below(runs) ? kBelow : kNextTo; }

/// A line of class `kind`, which shows its run's name when pointed at.
std::string polyline(const Points& pixels, const char* kind, const Run& run,
                     const std::string& style) {
  std::string svg = fmt::format("<polyline class=\"{}\" fill=\"none\" stroke=\"{}\"{} points=\"",
                                kind, run.style.colour, style);
  for (const auto& [x, y] : pixels) svg += fmt::format("{:.1f},{:.1f} ", x, y);
  if (svg.back() == ' ') svg.pop_back();
  return svg + fmt::format("\"><title>{}</title></polyline>\n", escaped(run.name));
}

/// The unsmoothed values of all runs, below everything else; the more runs there are, the fainter
/// they are.
std::string originals(const std::vector<Run>& runs, const Axis& x, const Axis& y) {
  const double opacity = std::max(0.26 / std::sqrt(static_cast<double>(runs.size())), 0.09);
  const std::string style = fmt::format(" stroke-width=\"1\" stroke-opacity=\"{:.2f}\"", opacity);
  std::string svg;
  for (const Run& run : runs)
    if (run.smooth != run.original)
      svg += polyline(placed(run.original, x, y), "original", run, style);
  return svg;
}

/// The smoothed training curve; a single value is a dot.
std::string training(const Run& run, const Axis& x, const Axis& y) {
  if (run.smooth.empty()) return "";
  const Points pixels = placed(run.smooth, x, y);
  std::string svg = polyline(pixels, "training", run,
                             " stroke-width=\"2\" stroke-linejoin=\"round\"" + dashes(run.style));
  if (pixels.size() == 1)
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n",
                       pixels[0].first, pixels[0].second, run.style.colour);
  return svg;
}

/// The held-out curve: dots joined by a dashed line.
std::string held_out(const Run& run, const Axis& x, const Axis& y) {
  if (run.held_out.empty()) return "";
  const Points pixels = placed(run.held_out, x, y);
  std::string svg =
      polyline(pixels, "held-out", run, " stroke-width=\"1.4\" stroke-dasharray=\"5 3\"");
  double last = -1e9;
  for (size_t i = 0; i < pixels.size(); ++i) {
    // dots that would touch are left out, except the last
    if (pixels[i].first - last < 8 && i + 1 < pixels.size()) continue;
    last = pixels[i].first;
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.6\" fill=\"#ffffff\" stroke=\"{}\" "
        "stroke-width=\"1.8\"/>\n",
        pixels[i].first, pixels[i].second, run.style.colour);
  }
  return svg;
}

std::string step_label(double v) {
  if (std::abs(v) >= 1e6) return fmt::format("{:g} M", v / 1e6);
  if (std::abs(v) >= 1e4) return fmt::format("{:g} k", v / 1e3);
  return fmt::format("{:g}", std::abs(v) < 1e-9 ? 0 : v);
}

std::string value_label(double v) { return v == 0 ? "0" : fmt::format("{:.5g}", v); }

/// Grid lines and labels of both axes.
std::string axes(const Axis& x, const Axis& y) {
  std::string svg;
  for (double v : y.ticks(8)) {
    const double at = y.at(v);
    svg += fmt::format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n",
                       kLeft, at, x.to, at, kGrid);
    svg += text_at(kLeft - 10, at + 4, value_label(v), kFaint, " text-anchor=\"end\"");
  }
  for (double v : x.ticks(10, 1)) {
    const double at = x.at(v);
    svg +=
        fmt::format("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"{3}\"/>\n",
                    at, kBottom, kBottom + 5, kFaint);
    svg += text_at(at, kBottom + 21, step_label(v), kFaint, " text-anchor=\"middle\"");
  }
  svg += fmt::format("<line x1=\"{0}\" y1=\"{1}\" x2=\"{2}\" y2=\"{1}\" stroke=\"{3}\"/>\n", kLeft,
                     kBottom, x.to, kFaint);
  if (y.logarithmic) svg += text_at(24, 56, "logarithmic", kFaint);
  return svg + text_at(x.to, kBottom + 42, "step", kFaint, " text-anchor=\"end\"");
}

/// Shortens a long name in its middle: runs of one kind begin alike and end in what tells
/// them apart.
std::string shortened(const std::string& name, size_t most) {
  std::vector<size_t> begins;  // where its characters begin
  for (size_t at = 0; at < name.size(); ++at)
    if ((static_cast<unsigned char>(name[at]) & 0xc0) != 0x80) begins.push_back(at);
  if (begins.size() <= most) return name;
  const size_t head = (most - 1) / 2, tail = most - 1 - head;
  return name.substr(0, begins[head]) + "…" + name.substr(begins[begins.size() - tail]);
}

/// The last value of each curve, for the legend.
std::string last_values(const Run& run) {
  if (run.empty()) return "no values";
  std::string text;
  if (!run.smooth.empty()) text = fmt::format("training {:#.4g}", run.smooth.back().second);
  if (!run.held_out.empty())
    text += fmt::format("{}held-out {:#.4g}", text.empty() ? "" : ", ", run.held_out.back().second);
  return text;
}

/// Entries one below the other next to the plot, or in columns below it.
struct Legend {
  double left, top;
  size_t rows;  ///< per column
  double bottom() const { return top + kEntryHeight * static_cast<double>(rows); }
};

Legend legend_of(size_t runs, double below) {
  if (!legend_below(runs)) return {kNextTo + 32, kTop + 8, runs};
  const auto columns = static_cast<size_t>(kWidth / kEntryWidth);
  return {24, below, (runs + columns - 1) / columns};
}

std::string drawn(const Legend& legend, const std::vector<Run>& runs) {
  std::string svg;
  for (size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    const size_t column = i / legend.rows, row = i % legend.rows;
    const double x = legend.left + kEntryWidth * static_cast<double>(column);
    const double y = legend.top + kEntryHeight * static_cast<double>(row);
    svg +=
        fmt::format("<path class=\"sample\" d=\"M{} {}h28\" stroke=\"{}\" stroke-width=\"3\"{}/>\n",
                    x, y - 4, run.style.colour, dashes(run.style));
    svg += text_at(x + 36, y, shortened(run.name, kNameWidth), kInk,
                   " font-weight=\"600\" font-size=\"13\"");
    svg += text_at(x + 36, y + 18, last_values(run), kFaint);
  }
  return svg;
}

/// Says above the plot what the kinds of line mean. Entries are placed from the right.
std::string key(const std::vector<Run>& runs, double right) {
  // Only kinds that occur are explained.
  const bool trained =
      std::any_of(runs.begin(), runs.end(), [](const Run& r) { return !r.original.empty(); });
  const bool evaluated =
      std::any_of(runs.begin(), runs.end(), [](const Run& r) { return !r.held_out.empty(); });
  std::string svg;
  double x = right;

  // An entry is a sample of the line and its text, to the left of the one before.
  const auto entry = [&](const std::string& text, const std::string& sample) {
    x -= 6.4 * static_cast<double>(text.size());
    svg += text_at(x, 36, text, kFaint);
    x -= 38;
    svg += fmt::format("<g transform=\"translate({:.1f} 32)\" stroke=\"{}\" fill=\"none\">{}</g>\n",
                       x, kFaint, sample);
    x -= 20;
  };
  if (evaluated)
    entry("held-out",
          "<path d=\"M0 0H30\" stroke-width=\"1.4\" stroke-dasharray=\"5 3\"/>"
          "<circle cx=\"15\" cy=\"0\" r=\"3.6\" fill=\"#ffffff\" stroke-width=\"1.8\"/>");
  const bool smooth =
      std::any_of(runs.begin(), runs.end(), [](const Run& r) { return r.smooth != r.original; });
  if (trained)
    entry(smooth ? "training, smoothed" : "training", "<path d=\"M0 0H30\" stroke-width=\"2\"/>");
  return svg;
}

}  // namespace

std::string plot_svg(const std::vector<Curve>& curves, const std::string& metric) {
  std::vector<Run> runs;
  for (const Curve& curve : curves) {
    Run run{curve.name,
            style_of(runs.size(), curves.size()),
            drawable(curve.training),
            {},
            drawable(curve.held_out)};
    run.smooth = smoothed(run.original);
    runs.push_back(std::move(run));
  }

  // Title and legend come even if there is nothing to draw, so that the picture says what
  // is missing.
  std::string title = metric;
  std::replace(title.begin(), title.end(), '_', ' ');
  const bool empty = std::all_of(runs.begin(), runs.end(), [](const Run& r) { return r.empty(); });
  const double bottom = empty ? 150 : kBottom + 62;
  const Legend legend = legend_of(runs.size(), bottom + 16);
  std::string svg = opening(kWidth, std::max(bottom, legend.bottom())) +
                    text_at(24, 38, title, kInk, " font-size=\"17\" font-weight=\"600\"");
  if (empty)
    return svg + text_at(24, kTop + 32, "no values to draw", kInk, " font-size=\"15\"") +
           drawn(legend, runs) + "</svg>\n";

  // Lines are drawn over the grid, the most important ones last. Clipping keeps them inside
  // the axes.
  const Axis x = steps_of(runs, kLeft, right_of(runs.size())), y = values_of(runs, kBottom, kTop);
  svg += key(runs, x.to) + axes(x, y);
  svg += fmt::format(
      "<clipPath id=\"plot\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/></clipPath>\n<g "
      "clip-path=\"url(#plot)\">\n",
      kLeft - 6, kTop - 6, x.to - kLeft + 12, kPlotHeight + 6);
  svg += originals(runs, x, y);
  for (const Run& run : runs) svg += training(run, x, y);
  for (const Run& run : runs) svg += held_out(run, x, y);
  return svg + "</g>\n" + drawn(legend, runs) + "</svg>\n";
}

}  // namespace tutti
