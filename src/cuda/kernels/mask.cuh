// Dropout's keyed masks, word for word those of the CPU (tensor/cpu/dropout.simd.cc):
//   - A row of a sample is cut into groups of 64 columns. Group g of row r takes 16 Philox blocks,
//     from block 16 (r ceil(cols / 64) + g) on, of the stream of (seed, step, block, site, sample).
//   - Column 64 g + 16 j + l of the row is word j of the l-th of these blocks.
// A thread with n consecutive columns needs one word each of n blocks, and the three threads 16, 32
// and 48 columns away in its group need the other words of the same blocks. So each of the four
// computes n / 4 of the blocks, and ballots of the warp carry the results to the others.
#pragma once

#include "base/philox.h"
#include "cuda/kernels/common.cuh"

namespace tutti::rows {

inline bool is_off(const Dropout* dropout) { return dropout == nullptr || dropout->rate == 0; }

/// The ten rounds of Philox4x32, as base/philox.h's philox_raw.
__device__ inline uint4 philox_words(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t low0 = 0xD2511F53u * counter.x, high0 = __umulhi(0xD2511F53u, counter.x);
    const uint32_t low1 = 0xCD9E8D57u * counter.z, high1 = __umulhi(0xCD9E8D57u, counter.z);
    counter = {high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0};
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return counter;
}

/// A dropout as the kernels take it, by value. What does not depend on the step is computed here,
/// on the host.
struct KeyedMask {
  static constexpr int kMostRowsAtOnce = 2;
  uint32_t domain[2];  ///< of (seed, purpose): the key that streams are drawn with
  uint64_t step, place;
  int64_t first_sample, first_row, rows_per_sample, groups;
  const StepKeys* keys;
  uint32_t threshold;
  float scale;

  KeyedMask(const Dropout& dropout, int64_t cols)
      : step(dropout.step),
        place(uint64_t{dropout.block} << 44 | uint64_t{dropout.site} << 40),
        first_sample(dropout.first_sample),
        first_row(dropout.first_row),
        rows_per_sample(dropout.rows_per_sample),
        groups((cols + 63) / 64),
        keys(dropout.keys),
        threshold(static_cast<uint32_t>(dropout.rate * 0x1p32)),
        scale(static_cast<float>(1 / (1 - dropout.rate))) {
    // Seed and purpose are those of the whole job, so the first of philox_stream's two draws is
    // made here.
    const auto words =
        philox_raw({static_cast<uint32_t>(dropout.seed), static_cast<uint32_t>(dropout.seed >> 32),
                    static_cast<uint32_t>(Purpose::kDropout), 0},
                   {0, 0});
    domain[0] = words[0];
    domain[1] = words[1];
  }

  /// The factors of a thread's n columns, row by row. Lane l of a warp has the columns from c + n l
  /// on, where c is a multiple of 64. For n > 1 all lanes must draw together, also those past the
  /// last column, since ballots take the whole warp.
  template <int n>
  class Drawn {
   public:
    __device__ Drawn(const KeyedMask& mask, int64_t column)
        : mask_(mask), column_(column), step_(mask.step), first_sample_(mask.first_sample) {
      // A captured step reads its number in device memory: the arguments stay those of the capture.
      if (mask.keys != nullptr) {
        step_ = mask.keys->step;
        first_sample_ += mask.keys->first_sample;
      }
    }

    __device__ void draw(int64_t row, float (&factors)[n]) {
      row += mask_.first_row;
      enter(row);
      const int64_t blocks = ((row - sample_begin_) * mask_.groups + column_ / 64) * 16;
      if constexpr (n == 1) {
        const uint4 words = block(blocks + column_ % 16);
        const int word = static_cast<int>(column_ % 64 / 16);
        const uint32_t drawn = word == 0   ? words.x
                               : word == 1 ? words.y
                               : word == 2 ? words.z
                                           : words.w;
        factors[0] = drawn >= mask_.threshold ? mask_.scale : 0.0f;
      } else {
        // kStride lanes are between the four threads that share blocks, and each computes kBlocks
        // of them. `word` is this thread's word of the blocks, and its number among the four.
        constexpr int kStride = 16 / n, kBlocks = n / 4;
        const int lane = threadIdx.x % kWarp, word = lane / kStride % 4,
                  first_lane = lane - word * kStride;

        // Every lane votes on all four words of its blocks and keeps the vote on the word that
        // it needs.
        uint32_t votes[kBlocks];
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          const uint4 words = block(blocks + lane % kStride * n + word * kBlocks + b);
          const uint32_t v0 = __ballot_sync(0xffffffffu, words.x >= mask_.threshold);
          const uint32_t v1 = __ballot_sync(0xffffffffu, words.y >= mask_.threshold);
          const uint32_t v2 = __ballot_sync(0xffffffffu, words.z >= mask_.threshold);
          const uint32_t v3 = __ballot_sync(0xffffffffu, words.w >= mask_.threshold);
          votes[b] = word == 0 ? v0 : word == 1 ? v1 : word == 2 ? v2 : v3;
        }

        // Block i of the n was computed by thread i / kBlocks of the four.
#pragma unroll
        for (int i = 0; i < n; ++i) {
          const uint32_t kept = votes[i % kBlocks] >> (first_lane + i / kBlocks * kStride) & 1;
          factors[i] = kept != 0 ? mask_.scale : 0.0f;
        }
      }
    }

   private:
    // The stream is the sample's: rows of the same sample need no division and no new stream.
    __device__ void enter(int64_t row) {
      if (sample_begin_ >= 0 && row >= sample_begin_ && row - sample_begin_ < mask_.rows_per_sample)
        return;
      const Division at = divide(row, mask_.rows_per_sample);
      sample_begin_ = row - at.rest;
      const uint64_t place = mask_.place | static_cast<uint64_t>(first_sample_ + at.quotient);
      stream_ = philox_words({static_cast<uint32_t>(step_), static_cast<uint32_t>(step_ >> 32),
                              static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32)},
                             {mask_.domain[0], mask_.domain[1]});
    }

    __device__ uint4 block(int64_t index) const {
      return philox_words({stream_.z, stream_.w, static_cast<uint32_t>(index),
                           static_cast<uint32_t>(static_cast<uint64_t>(index) >> 32)},
                          {stream_.x, stream_.y});
    }

    const KeyedMask& mask_;
    const int64_t column_;
    uint64_t step_;
    int64_t first_sample_, sample_begin_ = -1;
    uint4 stream_{};
  };
};

}  // namespace tutti::rows
