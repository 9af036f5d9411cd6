// Whether the hosts of a run have room for the copies that checkpoints are written from.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tutti {

/// What a rank needs of its host's memory in all, its copy included, and what was free there before
/// the ranks took any.
struct RankNeeds {
  int64_t host = 0, free = 0, bytes = 0;
};

/// Why copies have no room; empty where every host has it for all of its ranks.
std::string lacks_room(std::span<const RankNeeds> ranks);

}  // namespace tutti
