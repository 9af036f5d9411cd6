// A line per host: its name, and "slots=N" or nothing more; "#" begins a comment. All lines that
// are wrong are named at once.
#include "app/layouts/hosts_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "grid/grid.h"

namespace tutti {

namespace {

/// The slots of each host; 0 for a host that does not say.
std::vector<int> parse_slots(const std::string& text, const std::string& source) {
  std::vector<int> slots;
  std::vector<std::string> faults;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line.erase(std::min(line.find('#'), line.size()));
    std::istringstream words(line);
    std::string name, said, more;
    if (!(words >> name)) continue;

    // Anything after the name must be slots=N, and no more.
    int count = 0;
    if (words >> said) {
      const std::string digits = said.starts_with("slots=") ? said.substr(6) : "";
      if (digits.empty() || digits.size() > 6 ||
          digits.find_first_not_of("0123456789") != std::string::npos ||
          (count = std::stoi(digits)) == 0 || words >> more)
        faults.push_back(
            fmt::format("{}:{}: expected a name and slots=N, not \"{}\"", source, number, line));
    }
    slots.push_back(count);
  }
  if (slots.empty() && faults.empty())
    faults.push_back(fmt::format("{}: it names no host", source));
  if (!faults.empty()) throw ConfigError(std::move(faults));
  return slots;
}

}  // namespace

int host_slots(const std::string& text, const std::string& source) {
  const std::vector<int> slots = parse_slots(text, source);
  return std::find(slots.begin(), slots.end(), 0) != slots.end()
             ? 0
             : std::accumulate(slots.begin(), slots.end(), 0);
}

std::vector<int> parse_hosts(const std::string& text, const std::string& source, int ranks) {
  const std::vector<int> slots = parse_slots(text, source);
  int left = ranks, open = 0;
  for (int count : slots) left -= count, open += count == 0 ? 1 : 0;
  if (open == 0 && left > 0)
    throw ConfigError({fmt::format("{}: {} slots for {} ranks", source, ranks - left, ranks)});
  std::vector<int> hosts;
  int opened = 0;
  for (size_t h = 0; h < slots.size(); ++h) {
    const int count = slots[h] > 0
                          ? slots[h]
                          : static_cast<int>(lanes_of(opened++, open, std::max(left, 0)).size());
    for (int i = 0; i < count && static_cast<int>(hosts.size()) < ranks; ++i)
      hosts.push_back(static_cast<int>(h));
  }
  return hosts;
}

}  // namespace tutti
