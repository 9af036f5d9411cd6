#include "base/process_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace tutti {

uint64_t work_of(pid_t pid) {
  // Faults (words 10 and 12) and time (14 and 15). The second word, in brackets, may have blanks.
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::istringstream words(text.substr(std::min(text.rfind(')') + 1, text.size())));
  uint64_t work = 0;
  std::string word;
  for (int i = 3; words >> word && i <= 15; ++i)
    if (i == 10 || i == 12 || i >= 14) work += std::strtoull(word.c_str(), nullptr, 10);

  // A child that ends takes its share along, which is a change as well.
  std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", pid));
  for (pid_t child = 0; children >> child;) work += work_of(child);
  return work;
}

}  // namespace tutti
