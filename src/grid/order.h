// The keyed order of data: a permutation of [0, n) that is computed at any position, without
// memory, and is the same for every layout. A shuffle that needs no list and no state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/philox.h"

namespace tutti {

/// A Feistel network with cycle-walking over the smallest domain of 2^(2k) places that holds n.
/// Keyed by (seed, pass).
class Permutation {
 public:
  Permutation(uint64_t seed, uint64_t pass, uint64_t n);
  uint64_t operator()(uint64_t i) const;
  /// out[k] = (*this)(first + k): the same, but many at once.
  void places(uint64_t first, std::span<int64_t> out) const;
  uint64_t size() const { return n_; }

 private:
  PhiloxStream stream_;
  uint64_t n_;
  int half_bits_;
};

/// Draws by weight in constant time (Walker's alias method).
class Alias {
 public:
  /// Weights must not be negative, infinite or all zero; throws Error otherwise.
  explicit Alias(std::span<const double> weights);
  /// A record, from two independent uniform draws: `column` below size, `toss` in [0, 1).
  uint64_t pick(uint64_t column, double toss) const;
  uint64_t size() const { return keep_.size(); }

 private:
  std::vector<double> keep_;
  std::vector<uint32_t> other_;
};

/// The record of sample `position` in the endless order over n records: the pass is position / n,
/// and the place in the pass is permuted by (seed, pass).
uint64_t record_at(uint64_t seed, uint64_t position, uint64_t n);

/// The record of every sample of a job.
struct Order {
  uint64_t seed = 0;
  uint64_t n = 1;  ///< records
  /// If not null, records are drawn by weight, with replacement, keyed by (seed, position).
  std::shared_ptr<const Alias> weights;
  uint64_t record(uint64_t position) const;
  /// Those of positions [first, first + records.size()): the same, but faster than one by one.
  void records(uint64_t first, std::span<int64_t> records) const;
};

/// A number for one sample. The sum of all such numbers names an order, whoever adds them up.
uint64_t order_digest(uint64_t position, uint64_t record);

/// The fold of cross-validation, below `folds`, that a record among n is in: the records in a keyed
/// order, dealt out in turn, so that sizes differ by at most one.
int64_t fold_of(uint64_t seed, uint64_t record, uint64_t n, int64_t folds);

/// Whether record i is held out: keyed by (seed, i), with probability about `fraction`.
bool held_out(uint64_t seed, uint64_t record, double fraction);

/// Whether record i is one of exactly `count` among n: the first ones in a keyed order
/// of their own.
bool held_out_of(uint64_t seed, uint64_t record, uint64_t n, uint64_t count);

}  // namespace tutti
