#include "train/save_room.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/bytes.h"

namespace tutti {

std::string lacks_room(std::span<const RankNeeds> ranks) {
  // Who looked after another rank had begun saw less: the least counts.
  std::map<int64_t, RankNeeds> hosts;
  for (const RankNeeds& rank : ranks) {
    RankNeeds& host =
        hosts.try_emplace(rank.host, RankNeeds{rank.host, rank.free, 0}).first->second;
    host.free = std::min(host.free, rank.free);
    host.bytes += rank.bytes;
  }
  for (const auto& [number, host] : hosts)
    if (host.bytes > host.free)
      return fmt::format("with copies of the state its ranks would need {}, and {} are free",
                         bytes_text(host.bytes), bytes_text(host.free));
  return "";
}

}  // namespace tutti
