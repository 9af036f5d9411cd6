// Groups are a pure function of the spec, so that all ranks and the byte forecast agree on them.
#include "comm/groups.h"

#include <algorithm>
#include <map>
#include <optional>

namespace tutti {
namespace {

// The union of the ranks' lanes, if it is one range.
std::optional<Range> lanes_of_ranks(const ReductionSpec& spec, const std::vector<int>& ranks) {
  std::vector<Range> owned;
  for (int r : ranks) owned.push_back(spec.owned[r]);
  std::sort(owned.begin(), owned.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < owned.size(); ++i) {
    if (owned[i].begin != owned[i - 1].end) return std::nullopt;
  }
  return Range{owned.front().begin, owned.back().end};
}

std::vector<std::vector<int>> by_host(const ReductionSpec& spec) {
  std::map<int, std::vector<int>> hosts;
  for (size_t r = 0; r < spec.owned.size(); ++r) {
    hosts[spec.hosts.empty() ? 0 : spec.hosts[r]].push_back(static_cast<int>(r));
  }
  std::vector<std::vector<int>> all;
  for (auto& [host, ranks] : hosts) all.push_back(std::move(ranks));
  return all;
}

bool two_levels_work(const ReductionSpec& spec, const std::vector<std::vector<int>>& hosts) {
  return std::all_of(hosts.begin(), hosts.end(), [&](const std::vector<int>& ranks) {
    return ranks.size() == hosts[0].size() && lanes_of_ranks(spec, ranks).has_value();
  });
}

}  // namespace

Groups groups_of(const ReductionSpec& spec, bool windows) {
  std::vector<std::vector<int>> members = by_host(spec);
  if (!windows || !two_levels_work(spec, members)) {
    members.clear();
    for (size_t r = 0; r < spec.owned.size(); ++r) members.push_back({static_cast<int>(r)});
  }
  Groups groups;
  groups.of.resize(spec.owned.size());
  groups.place.resize(spec.owned.size());
  for (std::vector<int>& ranks : members) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      groups.of[ranks[i]] = groups.size();
      groups.place[ranks[i]] = static_cast<int>(i);
    }
    std::vector<Range> trees = subtrees(*lanes_of_ranks(spec, ranks), spec.lanes);
    groups.all.push_back({std::move(ranks), std::move(trees)});
  }
  return groups;
}

std::vector<Range> fold_slices(const ReductionSpec& spec) {
  if (spec.fold == FoldAt::kOwner) return spec.slices;
  std::vector<Range> slices(spec.slices.size());
  slices[0] = {0, spec.result_size};
  return slices;
}

}  // namespace tutti
