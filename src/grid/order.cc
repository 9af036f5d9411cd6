// One place at a time, the Feistel network waits for each multiplication of its 80 Philox
// rounds. So a batch of places goes through it at once, and those that end outside [0, n) walk
// on together (cycle-walking).
#include "grid/order.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/processor.h"
#include "grid/order_kernels.h"

namespace tutti {

namespace {

constexpr uint64_t kByRecord = 0;             // the second word of a split's keys
constexpr uint64_t kFoldPass = ~uint64_t{0};  // in the place of a pass: no sample reaches it
constexpr uint64_t kCountPass = kFoldPass - 1;

/// The upper 64 bits of a product: a draw of 64 bits mapped to [0, b).
uint64_t high_product(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}

}  // namespace

Permutation::Permutation(uint64_t seed, uint64_t pass, uint64_t n)
    : stream_(philox_stream({seed, Purpose::kOrder, pass, 0})), n_(n), half_bits_(1) {
  // The domain has 2^(2 * half_bits) places, two halves of equally many bits.
  TUTTI_CHECK(n > 0, "a permutation of nothing");
  while (half_bits_ < 32 && n > uint64_t{1} << (2 * half_bits_)) ++half_bits_;
}

uint64_t Permutation::operator()(uint64_t i) const {
  TUTTI_CHECK(i < n_, "position {} of a permutation of {}", i, n_);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;

  // The network permutes a domain of less than 4 n places (or the smallest one). Walking on from
  // places outside [0, n) leaves a permutation of [0, n), since every cycle through one comes back.
  do {
    uint64_t left = i >> half_bits_, right = i & mask;
    for (uint32_t round = 0; round < kFeistelRounds; ++round) {
      const auto block =
          philox_raw({static_cast<uint32_t>(right), round, stream_.counter[0], stream_.counter[1]},
                     stream_.key);
      const uint64_t mixed = left ^ (block[0] & mask);
      left = right;
      right = mixed;
    }
    i = left << half_bits_ | right;
  } while (i >= n_);
  return i;
}

void Permutation::places(uint64_t first, std::span<int64_t> out) const {
  TUTTI_CHECK(first <= n_ && out.size() <= n_ - first, "positions [{}, {}) of a permutation of {}",
              first, first + out.size(), n_);

  // Blocks that stay in the cache. `index`: for which output each place walks.
  constexpr size_t kBlock = 256;
  std::array<uint64_t, kBlock> walking;
  std::array<uint32_t, kBlock> index;
  for (size_t begin = 0; begin < out.size(); begin += kBlock) {
    size_t count = std::min(kBlock, out.size() - begin);
    std::iota(walking.begin(), walking.begin() + count, first + begin);
    std::iota(index.begin(), index.begin() + count, 0);
    while (count > 0) {
      // Kernels take whole vectors; what pads them is not looked at again.
      const size_t padded = (count + kFeistelLanes - 1) / kFeistelLanes * kFeistelLanes;
      std::fill(walking.begin() + count, walking.begin() + padded, 0);
      static constexpr decltype(&isa_portable::feistel) kFeistel[] = TUTTI_TABLE_OF(feistel);
      on_path(kFeistel)(stream_, half_bits_, walking.data(), static_cast<int64_t>(padded));

      // Those that are inside are done; the others are moved together for another walk.
      size_t outside = 0;
      for (size_t k = 0; k < count; ++k) {
        // A place that walks on is written, too; its last value wins.
        out[begin + index[k]] = static_cast<int64_t>(walking[k]);
        const bool on = walking[k] >= n_;
        walking[outside] = walking[k];
        index[outside] = index[k];
        outside += on ? 1 : 0;
      }
      count = outside;
    }
  }
}

// Walker's tables: every column has an n-th of all draws; it keeps its own share of them and one
// other record gets the rest.
Alias::Alias(std::span<const double> weights) : keep_(weights.size()), other_(weights.size()) {
  const size_t n = weights.size();
  if (n == 0 || n > UINT32_MAX) throw Error(fmt::format("{} records cannot be drawn by weight", n));

  // A weight that is no number would make every draw wrong, so each is looked at.
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    if (!(weights[i] >= 0) || std::isinf(weights[i])) {
      throw Error(fmt::format("the weight of record {} is {}", i, weights[i]));
    }
    sum += weights[i];
  }
  if (!(sum > 0) || std::isinf(sum))
    throw Error(fmt::format("the weights of all {} records add up to {}", n, sum));

  // Shares are scaled to a mean of 1; columns below it are filled up by those above.
  std::vector<uint32_t> small, large;
  for (size_t i = 0; i < n; ++i) {
    keep_[i] = weights[i] / sum * static_cast<double>(n);
    other_[i] = static_cast<uint32_t>(i);
    (keep_[i] < 1 ? small : large).push_back(static_cast<uint32_t>(i));
  }

  // Each round fills one column for good. The rich one gives away what is missing, and may become
  // poor by that.
  while (!small.empty() && !large.empty()) {
    const uint32_t poor = small.back(), rich = large.back();
    small.pop_back();
    other_[poor] = rich;
    keep_[rich] -= 1 - keep_[poor];
    if (keep_[rich] < 1) {
      large.pop_back();
      small.push_back(rich);
    }
  }

  // What rounding leaves over on one side is full up to rounding, unless it has no weight at all.
  const auto heaviest = std::max_element(weights.begin(), weights.end()) - weights.begin();
  for (const uint32_t i : small) {
    keep_[i] = weights[i] > 0 ? 1 : 0;
    if (weights[i] == 0) other_[i] = static_cast<uint32_t>(heaviest);
  }
  for (const uint32_t i : large) keep_[i] = 1;
}

uint64_t Alias::pick(uint64_t column, double toss) const {
  return toss < keep_[column] ? column : other_[column];
}

uint64_t record_at(uint64_t seed, uint64_t position, uint64_t n) {
  return Permutation(seed, position / n, n)(position % n);
}

uint64_t Order::record(uint64_t position) const {
  if (!weights) return record_at(seed, position, n);
  int64_t record = 0;
  records(position, {&record, 1});
  return static_cast<uint64_t>(record);
}

void Order::records(uint64_t first, std::span<int64_t> records) const {
  if (weights) {
    // One block per sample: two words pick the column, two make the toss (53 bits).
    const PhiloxStream stream = philox_stream({seed, Purpose::kResample, 0, 0});
    for (size_t i = 0; i < records.size(); ++i) {
      const uint64_t position = first + i;
      const auto block =
          philox_raw({stream.counter[0], stream.counter[1], static_cast<uint32_t>(position),
                      static_cast<uint32_t>(position >> 32)},
                     stream.key);
      const uint64_t column = high_product(uint64_t{block[1]} << 32 | block[0], weights->size());
      const double toss =
          static_cast<double>((uint64_t{block[3]} << 32 | block[2]) >> 11) * 0x1p-53;
      records[i] = static_cast<int64_t>(weights->pick(column, toss));
    }
    return;
  }

  // A permutation for each pass that the positions touch.
  while (!records.empty()) {
    const uint64_t place = first % n;
    const size_t here = static_cast<size_t>(std::min<uint64_t>(records.size(), n - place));
    Permutation(seed, first / n, n).places(place, records.first(here));
    records = records.subspan(here);
    first += here;
  }
}

// Two rounds of a multiply-xorshift mix: no sum of such numbers stays the same when two samples
// exchange their records.
uint64_t order_digest(uint64_t position, uint64_t record) {
  uint64_t x = (record + 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 32 ^ position * 0xD6E8FEB86659FD93) * 0x94D049BB133111EB;
  x = (x ^ x >> 29) * 0xFF51AFD7ED558CCD;
  return x ^ x >> 32;
}

int64_t fold_of(uint64_t seed, uint64_t record, uint64_t n, int64_t folds) {
  TUTTI_CHECK(folds > 0, "a record of {} folds", folds);
  return static_cast<int64_t>(Permutation(seed, kFoldPass, n)(record) %
                              static_cast<uint64_t>(folds));
}

bool held_out(uint64_t seed, uint64_t record, double fraction) {
  const auto block = philox({seed, Purpose::kSplit, record, kByRecord}, 0);
  const uint64_t word = uint64_t{block[1]} << 32 | block[0];
  return static_cast<double>(word >> 11) * 0x1p-53 < fraction;
}

bool held_out_of(uint64_t seed, uint64_t record, uint64_t n, uint64_t count) {
  return Permutation(seed, kCountPass, n)(record) < count;
}

}  // namespace tutti
