#include "grid/order.h"

#include "base/error.h"

namespace tutti {

namespace {

constexpr uint32_t kRounds = 8;  // four suffice for large domains; small ones need more to look shuffled

}  // namespace

Permutation::Permutation(uint64_t seed, uint64_t pass, uint64_t n)
    : stream_(philox_stream({seed, Purpose::kOrder, pass, 0})), n_(n), half_bits_(1) {
  TUTTI_CHECK(n > 0, "a permutation of nothing");
  while (half_bits_ < 32 && n > uint64_t{1} << (2 * half_bits_)) ++half_bits_;
}

uint64_t Permutation::operator()(uint64_t i) const {
  TUTTI_CHECK(i < n_, "position {} of a permutation of {}", i, n_);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  // The network permutes a domain of less than 4 n; walking on from places outside [0, n) leaves a permutation of [0,
  // n).
  do {
    uint64_t left = i >> half_bits_, right = i & mask;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const auto block =
          philox_raw({static_cast<uint32_t>(right), round, stream_.counter[0], stream_.counter[1]}, stream_.key);
      const uint64_t mixed = left ^ (block[0] & mask);
      left = right;
      right = mixed;
    }
    i = left << half_bits_ | right;
  } while (i >= n_);
  return i;
}

uint64_t record_at(uint64_t seed, uint64_t position, uint64_t n) {
  return Permutation(seed, position / n, n)(position % n);
}

bool held_out(uint64_t seed, uint64_t record, double fraction) {
  const auto block = philox({seed, Purpose::kSplit, record, 0}, 0);
  const uint64_t word = uint64_t{block[1]} << 32 | block[0];
  return static_cast<double>(word >> 11) * 0x1p-53 < fraction;
}

uint64_t Order::record(uint64_t position) const { return record_at(seed, position, n); }

void Order::records(uint64_t first, std::span<int64_t> records) const {
  for (size_t i = 0; i < records.size(); ++i) records[i] = static_cast<int64_t>(record(first + i));
}

uint64_t order_digest(uint64_t position, uint64_t record) {
  const auto words = philox({position, Purpose::kOrder, record, ~uint64_t{0}}, 0);
  return uint64_t{words[0]} << 32 | words[1];
}

}  // namespace tutti
