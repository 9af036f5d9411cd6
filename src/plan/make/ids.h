// Numbers of instructions that meet, by kind: functions of what they are about, so that all
// ranks have the same ones. The numbers below them are for instructions of one rank alone
// (MeshBuilder gives them).
#pragma once

#include <cstdint>

namespace tutti {

/// A borrowed buffer before all programs are there; later it gets its number in its
/// own rank's program.
inline constexpr int kUnknownBuffer = -1;

inline constexpr uint32_t kVoteId = 1u << 22;
/// + parcel and round, or host or position
inline constexpr uint32_t kReduceIds = kVoteId + 1;
inline constexpr uint32_t kGradientGatherIds = 1u << 24;  ///< + parcel and host
inline constexpr uint32_t kRefreshIds = 3u << 23;         ///< + parcel
inline constexpr uint32_t kGatherIds = 1u << 28;          ///< + use and replica of a home
inline constexpr uint32_t kExchangeIds = 2u << 28;        ///< + turn, stage and data rank
/// + border of a chunk, micro-batch and data rank
inline constexpr uint32_t kSendIds = 3u << 28;

}  // namespace tutti
