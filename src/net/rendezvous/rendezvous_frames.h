// The kinds of frames that a worker and the launcher send each other
// in the rendezvous of processes.
#pragma once

#include <cstdint>

namespace tutti {

inline constexpr uint32_t kCard = 1;  ///< a rank's card: to the launcher, and back to everybody
/// sent instead of a deck: the rank of this frame will never hand in its card
inline constexpr uint32_t kRankLeft = 2;

}  // namespace tutti
