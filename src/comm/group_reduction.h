// The exact reduction over groups (comm/groups.h): windows, messages and two levels are the same algorithm.
#pragma once

#include <memory>

#include "comm/reduction.h"

namespace tutti {

std::unique_ptr<Reduction> make_group_reduction(const ReductionSpec& spec, Transport& transport,
                                                std::span<std::byte> arena);
/// kind = ring: own partials folded from left to right, then the classical ring over the result.
std::unique_ptr<Reduction> make_ring_reduction(const ReductionSpec& spec, Transport& transport,
                                               std::span<std::byte> arena);

/// Messages of a bucket have the operations kReductionTags + 2 * bucket (reduce) and + 1 (gather): apart from any
/// Channel.
inline constexpr uint32_t kReductionTags = 1U << 30;
/// Flags of a bucket: 3 * bucket + one of these.
enum BucketFlag { kReadyFlag, kReducedFlag, kReleasedFlag };
/// Where messages travel a slice is cut into up to four blocks of at least this many floats: the first is folded and on
/// its way back while the next arrives; more blocks cost more messages than they hide.
inline constexpr int64_t kBlockFloats = 512 * 1024;

}  // namespace tutti
