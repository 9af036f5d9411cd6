// Pictures are written as text, element by element; nothing else of SVG is needed.
#include "base/text/svg.h"

#include <fmt/format.h>

#include <cmath>

namespace tutti::svg {

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) < 0x20)
      out += ' ';  // XML has no sign for most control characters
    else
      out += c;
  }
  return out;
}

std::string opening(double width, double height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" "
      "font-family=\"Inter, 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif\" "
      "font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      width, height);
}

std::string text_at(double x, double y, const std::string& text, const char* fill,
                    const std::string& more) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\"{}>{}</text>\n", x, y, fill, more,
                     escaped(text));
}

std::string legend(double left, const std::vector<LegendEntry>& entries, const LegendStyle& style) {
  std::string svg;
  double x = left;
  for (const LegendEntry& entry : entries) {
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"52\" width=\"12\" height=\"12\" rx=\"2.5\" fill=\"{}\"/>\n", x,
        entry.fill);
    svg += text_at(x + style.indent, 62.5, entry.name, kInk, style.more);
    x += style.indent + style.letter * static_cast<double>(std::string(entry.name).size()) +
         style.gap;
  }
  return svg;
}

TimeAxis time_axis(const TimeSpan& time) {
  TimeAxis axis;
  const double most = time.span / time.unit, tick = tick_step(most);

  // A tick that rounding puts just beyond the end is still drawn.
  for (int k = 0; k * tick <= most * (1 + 1e-9); ++k) {
    const double x = time.left + k * tick * time.unit * time.scale;
    axis.lines += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\"/>\n", x,
        time.top - 6, time.bottom, kGrid);
    axis.numbers += text_at(x, time.bottom + 18, fmt::format("{:.6g}", k * tick), kFaint,
                            " text-anchor=\"middle\"");
  }
  return axis;
}

double tick_step(double span, int most) {
  // A step is 1, 2 or 5 times a power of ten; the search begins at the power at or below the ideal
  // step.
  const double power = std::pow(10.0, std::floor(std::log10(span / most)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (span / (factor * power) <= most) return factor * power;
  }
  return 10 * power;
}

}  // namespace tutti::svg
