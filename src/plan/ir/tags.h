// Who has which numbers: the operations of messages (Tag::operation in net/transport.h) and the
// flags of windows. Ranks must have the same, and no two things that happen at the same time may
// share one, so all are dealt out here.
//
//   operations   what instructions have as their ids, each kind a range of its own; above the
//                Reduces, channels and what else sends messages without being an instruction. What
//                is numbered by micro-batch or rank, too, has the widest ranges
//   flags        five for each parcel
#pragma once

#include <cstdint>
#include <initializer_list>

#include "plan/ir/program.h"
#include "plan/ir/window_flags.h"

namespace tutti {

/// The operations first, first + 1, ... last.
struct Operations {
  uint32_t first = 0, last = 0;
  constexpr uint32_t at(uint64_t number) const { return first + static_cast<uint32_t>(number); }
  constexpr bool has(uint32_t operation) const { return first <= operation && operation <= last; }
  constexpr uint32_t count() const { return last - first + 1; }
};

/// Instructions of one rank alone, which send nothing. 0 is no id.
inline constexpr Operations kOwnIds{1, (1u << 22) - 1};
inline constexpr Operations kVoteId{1u << 22, 1u << 22};
/// + parcel and round, or host or position
inline constexpr Operations kReduceIds{kVoteId.last + 1, (1u << 24) - 513};

/// What a channel or a roll call needs: it numbers its own messages.
inline constexpr uint32_t kChannelOperations = 16;
constexpr Operations channel_of(uint32_t number) {
  const uint32_t first = kReduceIds.last + 1 + number * kChannelOperations;
  return {first, first + kChannelOperations - 1};
}
inline constexpr Operations kDataChannel = channel_of(0);      ///< the data queue's
inline constexpr Operations kMainChannel = channel_of(1);      ///< the trainer's
inline constexpr Operations kLoaderChannel = channel_of(2);    ///< a partition's exchange
inline constexpr Operations kRollCall = channel_of(3);         ///< of a step's program
inline constexpr Operations kForwardRollCall = channel_of(4);  ///< of an evaluation's
inline constexpr Operations kOutputMessages = channel_of(5);   ///< of an evaluation's columns
inline constexpr Operations kHandover = channel_of(6);         ///< of state, between two epochs
inline constexpr Operations kSaverChannel = channel_of(7);     ///< of ranks that write a checkpoint

inline constexpr Operations kGradientGatherIds{1u << 24, (3u << 23) - 1};  ///< + parcel and host
inline constexpr Operations kRefreshIds{3u << 23, (1u << 28) - 1};         ///< + parcel
/// + use and replica of a home
inline constexpr Operations kGatherIds{1u << 28, (2u << 28) - 1};
/// + turn, stage and data rank
inline constexpr Operations kExchangeIds{2u << 28, (3u << 28) - 1};
/// + border of a chunk, micro-batch and data rank
inline constexpr Operations kSendIds{3u << 28, UINT32_MAX};

namespace detail {

constexpr bool apart_and_ascending(std::initializer_list<Operations> all) {
  uint32_t free = 0;
  for (const Operations& o : all) {
    if (o.first < free || o.last < o.first) return false;
    free = o.last + 1;
  }
  return true;
}
static_assert(apart_and_ascending({kOwnIds, kVoteId, kReduceIds, kDataChannel, kMainChannel,
                                   kLoaderChannel, kRollCall, kForwardRollCall, kOutputMessages,
                                   kHandover, kSaverChannel, kGradientGatherIds, kRefreshIds,
                                   kGatherIds, kExchangeIds, kSendIds}),
              "two kinds of messages share an operation");

}  // namespace detail

/// Whether an instruction of this kind may have the id.
constexpr bool is_id_of(Op op, uint32_t id) {
  switch (op) {
    case Op::kVote:
      return kVoteId.has(id);
    case Op::kReduce:
      return kReduceIds.has(id);
    case Op::kGather:
      return kGradientGatherIds.has(id) || kRefreshIds.has(id) || kGatherIds.has(id);
    case Op::kExchange:
      return kExchangeIds.has(id);
    case Op::kSend:
    case Op::kRecv:
      return kSendIds.has(id);
    default:
      return kOwnIds.has(id);
  }
}

/// A parcel's flags: its rounds' sums share two, its copies before and after its Updates have one
/// each, and one says when what was borrowed of it may be written again.
enum ParcelFlag { kSumReady, kSumTaken, kCopyReady, kUpdatedReady, kReleased, kParcelFlags };
inline constexpr int flag_of(int parcel, ParcelFlag flag) { return parcel * kParcelFlags + flag; }
/// Parcels that have flags.
inline constexpr int kFlaggedParcels = kWindowFlags / kParcelFlags;

}  // namespace tutti
