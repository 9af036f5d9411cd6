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
