// One stream of SHA-256 waits for its own last round most of the time, so two that know nothing of
// each other take little longer than one. This is FIPS 180-4 by the instructions that x86 has for
// it; processors without them use OpenSSL, one input after the other.
#include <algorithm>
#include <cstring>

#include "base/hash.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace tutti {

namespace {

#if defined(__x86_64__)

constexpr size_t kBlock = 64;

alignas(16) constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

bool has_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool sse41 = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_1) != 0;
  return sse41 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_SHA) != 0;
}

/// A stream's input as far as it is hashed, and its state in the order of the instructions.
struct Stream {
  const std::byte* at = nullptr;
  __m128i abef, cdgh;
};

/// Hashes `blocks` blocks of each stream, four rounds at a time; from the fifth time on their words
/// are made of the sixteen before.
template <int streams>
__attribute__((target("sha,sse4.1"))) void hash_blocks(Stream* all, size_t blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  for (; blocks > 0; --blocks) {
    __m128i words[streams][4], abef[streams], cdgh[streams];
    for (int s = 0; s < streams; ++s) abef[s] = all[s].abef, cdgh[s] = all[s].cdgh;

#pragma clang loop unroll(full)
    for (int i = 0; i < 16; ++i) {
#pragma clang loop unroll(full)
      for (int s = 0; s < streams; ++s) {
        __m128i& word = words[s][i % 4];
        if (i < 4) {
          word = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(all[s].at) + i),
                                  big_endian);
        } else {
          const __m128i last = words[s][(i + 3) % 4];
          word = _mm_add_epi32(_mm_sha256msg1_epu32(word, words[s][(i + 1) % 4]),
                               _mm_alignr_epi8(last, words[s][(i + 2) % 4], 4));
          word = _mm_sha256msg2_epu32(word, last);
        }
        const __m128i sum =
            _mm_add_epi32(word, _mm_load_si128(reinterpret_cast<const __m128i*>(kRounds + 4 * i)));
        cdgh[s] = _mm_sha256rnds2_epu32(cdgh[s], abef[s], sum);
        abef[s] = _mm_sha256rnds2_epu32(abef[s], cdgh[s], _mm_shuffle_epi32(sum, 0x0e));
      }
    }
    for (int s = 0; s < streams; ++s) {
      all[s].abef = _mm_add_epi32(all[s].abef, abef[s]);
      all[s].cdgh = _mm_add_epi32(all[s].cdgh, cdgh[s]);
      all[s].at += kBlock;
    }
  }
}

void start(Stream& stream, std::span<const std::byte> input) {
  stream.at = input.data();
  stream.abef = _mm_set_epi32(0x6a09e667, static_cast<int>(0xbb67ae85), 0x510e527f,
                              static_cast<int>(0x9b05688c));
  stream.cdgh = _mm_set_epi32(0x3c6ef372, static_cast<int>(0xa54ff53a), 0x1f83d9ab, 0x5be0cd19);
}

/// Hashes what is left of the input, its end and its length.
Digest finish(Stream& stream, std::span<const std::byte> input) {
  hash_blocks<1>(&stream, (input.size() - static_cast<size_t>(stream.at - input.data())) / kBlock);
  std::byte tail[2 * kBlock] = {};
  const size_t rest = input.size() % kBlock;
  if (rest > 0) std::memcpy(tail, stream.at, rest);
  tail[rest] = std::byte{0x80};
  const size_t blocks = rest + 9 <= kBlock ? 1 : 2;
  const uint64_t bits = __builtin_bswap64(uint64_t{input.size()} * 8);
  std::memcpy(tail + blocks * kBlock - sizeof bits, &bits, sizeof bits);
  stream.at = tail;
  hash_blocks<1>(&stream, blocks);

  // The words of the state are, from the highest lane down, a b e f and c d g h.
  uint32_t abef[4], cdgh[4];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(abef), stream.abef);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(cdgh), stream.cdgh);
  const uint32_t words[8] = {abef[3], abef[2], cdgh[3], cdgh[2],
                             abef[1], abef[0], cdgh[1], cdgh[0]};
  Digest digest;
  for (size_t i = 0; i < 8; ++i) {
    const uint32_t word = __builtin_bswap32(words[i]);
    std::memcpy(digest.data() + 4 * i, &word, sizeof word);
  }
  return digest;
}

#endif

}  // namespace

void sha256_each(std::span<const std::span<const std::byte>> inputs, std::span<Digest> digests) {
  size_t i = 0;
#if defined(__x86_64__)
  static const bool side_by_side = has_instructions();
  for (; side_by_side && i + 1 < inputs.size(); i += 2) {
    Stream pair[2];
    for (size_t s = 0; s < 2; ++s) start(pair[s], inputs[i + s]);
    hash_blocks<2>(pair, std::min(inputs[i].size(), inputs[i + 1].size()) / kBlock);
    for (size_t s = 0; s < 2; ++s) digests[i + s] = finish(pair[s], inputs[i + s]);
  }
#endif
  for (; i < inputs.size(); ++i) digests[i] = sha256(inputs[i]);
}

std::vector<Digest> sha256_each(std::span<const std::span<const std::byte>> inputs) {
  std::vector<Digest> digests(inputs.size());
  sha256_each(inputs, digests);
  return digests;
}

}  // namespace tutti
