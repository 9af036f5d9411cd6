// What is left is the least of what the system and every control group (cgroup v2) on the way up
// have left. What cannot be read sets no limit.
#include "base/bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>

#include "base/error.h"

namespace tutti {

namespace {

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

/// The first number in a file; kNoLimit if there is none ("max", or no such file).
size_t read_number(const std::string& path) {
  std::ifstream in(path);
  size_t value = 0;
  return in >> value ? value : kNoLimit;
}

/// MemAvailable counts page cache that can be given up as available.
size_t left_by_system() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  size_t kib = 0;
  while (in >> key >> kib) {
    std::getline(in, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return kNoLimit;
}

/// What a control group leaves. memory.current counts page cache that can be reclaimed as used, so
/// it is given back here.
size_t left_by_group(const std::string& folder) {
  const size_t limit = read_number(folder + "/memory.max");
  const size_t used = read_number(folder + "/memory.current");
  if (limit == kNoLimit || used == kNoLimit) return kNoLimit;
  size_t cache = 0;
  std::ifstream in(folder + "/memory.stat");
  std::string key;
  for (size_t value = 0; in >> key >> value;) {
    if (key == "inactive_file" || key == "active_file") cache += value;
  }
  return limit > used - std::min(used, cache) ? limit - (used - std::min(used, cache)) : 0;
}

}  // namespace

size_t available_memory() {
  size_t available = left_by_system();

  // The line of cgroup v2 begins with "0::" and names the group of this process.
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("0::")) continue;

    // Every group on the way up to the root may have a limit of its own.
    for (std::string path = line.substr(3);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      available = std::min(available, left_by_group("/sys/fs/cgroup" + path));
      if (path.empty()) break;
    }
  }
  return available;
}

std::string bytes_text(double bytes) {
  const char* names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t at = 0;
  // 1023.96 would be printed as 1024.
  while (bytes >= 1023.95 && at + 1 < std::size(names)) bytes /= 1024, ++at;
  const double parts = at == 0 ? 1 : bytes < 9.995 ? 100 : 10;
  return fmt::format("{} {}", std::round(bytes * parts) / parts, names[at]);
}

std::string rate_text(double rate, std::string_view unit) {
  const char* names[] = {"", "k", "M", "G", "T", "P"};
  size_t at = 0;
  // 999.6 would be printed as 1e+03.
  while (rate >= 999.5 && at + 1 < std::size(names)) rate /= 1000, ++at;
  return fmt::format("{:.3g} {}{}/s", rate, names[at], unit);
}

int64_t parse_bytes(const std::string& text) {
  static const std::map<std::string, double> kUnits = {
      {"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit = end;
  unit.erase(0, unit.find_first_not_of(' '));
  const auto found = kUnits.find(unit);
  if (end == text.c_str() || found == kUnits.end() || !(number * found->second >= 1) ||
      number * found->second > 9e18)
    throw ConfigError({fmt::format("{}: not a number of bytes; say it like 16GiB or 500MB", text)});
  return static_cast<int64_t>(number * found->second);
}

}  // namespace tutti
