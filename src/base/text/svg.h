// What all pictures have in common: the colours of ink and paper, text, and the ticks of an axis.
#pragma once

#include <string>

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
/// The smallest of 1, 2, 5 times a power of ten that cuts `span` into at most `most` parts.
double tick_step(double span, int most = 10);

}  // namespace tutti::svg
