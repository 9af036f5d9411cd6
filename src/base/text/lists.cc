// Joins words and lines for messages.
#include "base/text/lists.h"

#include <fmt/ranges.h>

namespace tutti {

std::string listed(const std::vector<std::string>& words, std::string_view last) {
  if (words.size() < 2) return words.empty() ? "" : words[0];
  return fmt::format("{} {} {}", fmt::join(words.begin(), words.end() - 1, ", "), last,
                     words.back());
}

std::vector<std::string> first_few(std::vector<std::string> lines, size_t most) {
  if (lines.size() <= most) return lines;
  const size_t more = lines.size() - most;
  lines.resize(most);
  lines.push_back(fmt::format("and {} more", more));
  return lines;
}

}  // namespace tutti
