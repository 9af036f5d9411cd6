// What all pictures have in common: the colours of ink and paper, text, the legend, and the axis
// with its ticks.
#pragma once

#include <string>
#include <vector>

namespace tutti::svg {

inline constexpr const char* kInk = "#1f2933";
inline constexpr const char* kFaint = "#6b7785";
inline constexpr const char* kGrid = "#dde2e7";

/// The text, escaped so that it may be put between tags and in attributes.
std::string escaped(const std::string& text);
/// The opening tag, with fonts and a white ground, so that the picture is readable on a
/// dark page, too.
std::string opening(double width, double height);
/// A text element. `more`: further attributes, with a space before each.
std::string text_at(double x, double y, const std::string& text, const char* fill,
                    const std::string& more = "");

/// A kind of bar, as the legend explains it.
struct LegendEntry {
  const char *name, *fill;
};
/// How far apart the entries of a legend are, in pixels. Widths of names are estimated, since only
/// whoever shows the picture knows its font.
struct LegendStyle {
  double indent;     // from a square to its name
  double letter;     // width of a letter
  double gap;        // from a name to the next square
  const char* more;  // further attributes of the names, as in text_at()
};
/// One row of squares and names that begins at `left`, between the title and the plot.
std::string legend(double left, const std::vector<LegendEntry>& entries, const LegendStyle& style);

/// An axis of time in two parts, so that bars can be drawn over its lines and under its numbers.
struct TimeAxis {
  std::string lines, numbers;
};
/// Where the axis is, in pixels, and the time that it shows.
struct TimeSpan {
  double left, top, bottom;  // grid lines go from a little above `top` down to `bottom`
  double span, unit;         // the whole time, and the unit of the numbers in the same measure
  double scale;              // pixels per measure of time
};
TimeAxis time_axis(const TimeSpan& time);

/// The smallest of 1, 2, 5 times a power of ten that cuts `span` into at most `most` parts.
double tick_step(double span, int most = 10);

}  // namespace tutti::svg
