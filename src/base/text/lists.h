// Lists in messages: in a sentence, and line by line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// "A", "A or B", "A, B or C", where `last` is "or".
std::string listed(const std::vector<std::string>& words, std::string_view last);

/// The first `most` lines, then "and N more".
std::vector<std::string> first_few(std::vector<std::string> lines, size_t most = 20);

}  // namespace tutti
