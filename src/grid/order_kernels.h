// The Feistel network of grid/order.h over many places at once, for every code path. order.cc picks
// one; a test compares them with the network written out.
#pragma once

#include <cstdint>

#include "base/code_path.h"
#include "base/philox.h"

namespace tutti {

// Four rounds suffice for large domains; small ones need more to look shuffled.
inline constexpr uint32_t kFeistelRounds = 8;
/// Places are permuted this many at a time.
inline constexpr int64_t kFeistelLanes = 16;

#define TUTTI_ORDER_KERNELS(isa)                                                            \
  namespace isa {                                                                           \
  /* `count` places (a multiple of kFeistelLanes) go once through the network, in place. */ \
  void feistel(const PhiloxStream& stream, int half_bits, uint64_t* places, int64_t count); \
  }
TUTTI_ON_EACH_PATH(TUTTI_ORDER_KERNELS)
#undef TUTTI_ORDER_KERNELS

}  // namespace tutti
