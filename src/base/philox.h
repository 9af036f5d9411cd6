// Philox 4x32-10: the only source of randomness (a counter-based generator). A draw is a pure
// function of its key, so it is the same on every layout.
#pragma once

#include <array>
#include <cstdint>

namespace tutti {

/// What a draw is for. The numbers are part of the job's meaning: never reuse or reorder them.
enum class Purpose : uint32_t {
  kInit = 1,
  kDropout = 2,
  kOrder = 3,
  kSplit = 4,
  kData = 5,
  kSample = 6,
  kTest = 7,
  kAugment = 8,
  kResample = 9,
  kLatent = 10
};

/// Names one stream of draws: (seed, purpose, a, b). What a and b are depends on the purpose:
///   init: a = hash64(parameter name), b = 0       element i of the parameter is draw i
///   dropout: tensor/cpu/dropout.simd.cc
///   order: a = pass over the data, b = 0          grid/order.cc
///   split: a = record, b: grid/order.cc
///   resample: a = b = 0                           block i is sample i
///   data: data/tables/generated.cc
///   augment: data/images/augment.cc
///   latent: a = sample, b = 0                     draw i is element i of its code
///   sample: the texts and codes of a trained model
struct PhiloxKey {
  uint64_t seed = 0;
  Purpose purpose = Purpose::kTest;
  uint64_t a = 0;
  uint64_t b = 0;
};

/// Four 32-bit words: the block `index` of the stream. The stream has 2^32 blocks.
std::array<uint32_t, 4> philox(const PhiloxKey& key, uint64_t index);

/// The raw 10-round function on a counter and a key; for kernels that vectorise it.
std::array<uint32_t, 4> philox_raw(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// The key and the first two counter words that a stream maps to. Words 2 and 3 of the counter are
/// the block's index.
struct PhiloxStream {
  std::array<uint32_t, 2> key;
  std::array<uint32_t, 2> counter;
};
PhiloxStream philox_stream(const PhiloxKey& key);

/// Draw i of the stream as a float in [0, 1) with 24 bits.
float philox_uniform(const PhiloxKey& key, uint64_t i);
/// Draw i of the stream as an integer below n, from a product of 64 x 64 -> 128 bits: some numbers
/// are more likely than others by a share of less than n / 2^64.
uint64_t philox_below(const PhiloxKey& key, uint64_t i, uint64_t n);
/// Draws 2 k and 2 k + 1 as standard normals (Box-Muller in double, over the words of block k), and
/// draw i alone.
std::array<double, 2> philox_normal_pair(const PhiloxKey& key, uint64_t k);
double philox_normal(const PhiloxKey& key, uint64_t i);

}  // namespace tutti
