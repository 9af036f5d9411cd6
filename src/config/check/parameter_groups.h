// train.groups: parameters by name pattern, with what differs for them. Written "pattern
// option...": "*.bias weight_decay=0", "embed.* lr=0.1 weight_decay=0.01", "stem.* frozen".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

struct ParameterGroup {
  std::string pattern;
  double lr = 1;                       ///< factor on the schedule's rate
  std::optional<double> weight_decay;  ///< in place of train.weight_decay
  bool frozen = false;                 ///< never updated
};

/// Every fault is added to `faults`, naming the text: no pattern, an option that is none (with the
/// nearest), a value that is no number at least 0.
std::vector<ParameterGroup> parse_groups(const std::vector<std::string>& texts,
                                         std::vector<std::string>& faults);

/// The first group whose pattern fits; null: none.
const ParameterGroup* group_of(const std::vector<ParameterGroup>& groups, std::string_view name);

/// * stands for any part, ? for any one character; everything else for itself. The whole name must
/// fit.
bool fits(std::string_view pattern, std::string_view name);

}  // namespace tutti
