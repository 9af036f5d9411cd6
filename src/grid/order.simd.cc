// Philox as the Feistel network's round function, kFeistelLanes places at a time. A 64-bit lane
// holds a 32-bit word of the counter in its lower half; nothing ever looks at the upper half, so no
// round needs a mask.
#include "grid/order_kernels.h"

namespace tutti::TUTTI_ISA {
namespace {

using V = uint64_t __attribute__((vector_size(kFeistelLanes * sizeof(uint64_t))));

// The constants of Philox 4x32-10, as in base/philox.cc.
constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kPhiloxRounds = 10;
constexpr uint64_t kLow = 0xFFFFFFFF;

/// The first word of philox_raw({right, round, counter 0, counter 1}, key).
inline V mixed(V right, uint64_t round, const PhiloxStream& stream) {
  V c0 = right, c1 = V{} + round, c2 = V{} + stream.counter[0], c3 = V{} + stream.counter[1];
  uint32_t k0 = stream.key[0], k1 = stream.key[1];
  for (int r = 0; r < kPhiloxRounds; ++r) {
    const V p0 = (c0 & kLow) * kMultiplier0, p1 = (c2 & kLow) * kMultiplier1;
    c0 = (p1 >> 32) ^ c1 ^ uint64_t { k0 };
    c1 = p1;
    c2 = (p0 >> 32) ^ c3 ^ uint64_t { k1 };
    c3 = p0;
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c0;
}

}  // namespace

void feistel(const PhiloxStream& stream, int half_bits, uint64_t* places, int64_t count) {
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  for (int64_t i = 0; i < count; i += kFeistelLanes) {
    // Any alignment will do: the copies become unaligned loads and stores.
    V place;
    __builtin_memcpy(&place, places + i, sizeof place);
    V left = place >> half_bits, right = place & mask;
    for (uint32_t round = 0; round < kFeistelRounds; ++round) {
      const V next = left ^ (mixed(right, round, stream) & mask);
      left = right;
      right = next;
    }
    place = left << half_bits | right;
    __builtin_memcpy(places + i, &place, sizeof place);
  }
}

}  // namespace tutti::TUTTI_ISA
