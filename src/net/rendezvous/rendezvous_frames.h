// What worker and launcher say to each other in the rendezvous of processes, and how a group of
// workers is named there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

inline constexpr uint32_t kCard = 1;  ///< a rank's card: to the launcher, and back to everybody
/// Instead of a deck: this rank will never hand in its card.
inline constexpr uint32_t kRankLeft = 2;

/// Who meets: the members of an epoch, by rank. All workers of the run are a group of no epoch.
struct Group {
  static constexpr uint32_t kNoEpoch = UINT32_MAX;
  uint32_t epoch = kNoEpoch;
  std::vector<int> members;
  auto operator<=>(const Group&) const = default;

  /// Whether a worker that was last seen in epoch `latest` has left this group's epoch behind.
  bool left_by(uint32_t latest) const { return epoch != kNoEpoch && latest > epoch; }
  int place_of(int worker) const {
    for (size_t r = 0; r < members.size(); ++r)
      if (members[r] == worker) return static_cast<int>(r);
    return -1;
  }
};
inline Group all_of(int workers) {
  Group all;
  for (int w = 0; w < workers; ++w) all.members.push_back(w);
  return all;
}

/// As frames carry it.
std::string to_bytes(const Group& group);
/// Throws Error on what is none.
Group group_from(const std::string& bytes);

}  // namespace tutti
