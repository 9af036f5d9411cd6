// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3") and the mapping of
// keys to streams.
#include "base/philox.h"

#include <cmath>
#include <numbers>

#include "base/portable_math.h"

namespace tutti {

namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

uint32_t low(uint64_t x) { return static_cast<uint32_t>(x); }
uint32_t high(uint64_t x) { return static_cast<uint32_t>(x >> 32); }
uint64_t join(uint32_t lo, uint32_t hi) { return uint64_t{hi} << 32 | lo; }

}  // namespace

std::array<uint32_t, 4> philox_raw(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  // One round of Philox 4x32: two products mix the words, and the key goes on by Weyl constants.
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = uint64_t{kMultiplier0} * counter[0];
    const uint64_t p1 = uint64_t{kMultiplier1} * counter[2];
    counter = {high(p1) ^ counter[1] ^ key[0], low(p1), high(p0) ^ counter[3] ^ key[1], low(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

PhiloxStream philox_stream(const PhiloxKey& key) {
  // Seed and purpose choose a key, under which (a, b) is encrypted. Philox is a bijection of its
  // counter, so for one (seed, purpose) no two (a, b) share a stream.
  const auto domain =
      philox_raw({low(key.seed), high(key.seed), static_cast<uint32_t>(key.purpose), 0}, {0, 0});
  const auto stream =
      philox_raw({low(key.a), high(key.a), low(key.b), high(key.b)}, {domain[0], domain[1]});
  return {{stream[0], stream[1]}, {stream[2], stream[3]}};
}

std::array<uint32_t, 4> philox(const PhiloxKey& key, uint64_t index) {
  const PhiloxStream stream = philox_stream(key);
  return philox_raw({stream.counter[0], stream.counter[1], low(index), high(index)}, stream.key);
}

float philox_uniform(const PhiloxKey& key, uint64_t i) {
  return static_cast<float>(philox(key, i / 4)[i % 4] >> 8) * 0x1p-24f;
}

uint64_t philox_below(const PhiloxKey& key, uint64_t i, uint64_t n) {
  const auto block = philox(key, i / 2);
  const uint64_t word = i % 2 == 0 ? join(block[0], block[1]) : join(block[2], block[3]);
  return static_cast<uint64_t>(static_cast<unsigned __int128>(word) * n >> 64);
}

std::array<double, 2> philox_normal_pair(const PhiloxKey& key, uint64_t k) {
  const auto block = philox(key, k);
  const double u = static_cast<double>((join(block[0], block[1]) >> 11) + 1) *
                   0x1p-53;  // (0, 1]: its logarithm is finite
  const double v = static_cast<double>(join(block[2], block[3]) >> 11) * 0x1p-53;
  const double radius = std::sqrt(-2 * portable::log(u));
  const portable::Waves at = portable::sin_cos(2 * std::numbers::pi * v);
  return {radius * at.cosine, radius * at.sine};
}

double philox_normal(const PhiloxKey& key, uint64_t i) {
  return philox_normal_pair(key, i / 2)[i % 2];
}

}  // namespace tutti
