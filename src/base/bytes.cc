// What is left is the least of what the system and every control group (cgroup v2) on the way up
// have left. What cannot be read sets no limit.
#include "base/bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>

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

  // 999.5 would be rounded to a fourth digit.
  while (bytes >= 999.5 && at + 1 < std::size(names)) bytes /= 1024, ++at;
  return at == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.3g} {}", bytes, names[at]);
}

}  // namespace tutti
