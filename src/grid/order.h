// The keyed order of data: a permutation of [0, n) computed at any position, without memory, the same for every layout.
#pragma once

#include <cstdint>

#include "base/philox.h"

namespace tutti {

/// A Feistel network with cycle-walking over the smallest even-bit domain that holds n. Keyed by (seed, pass).
class Permutation {
 public:
  Permutation(uint64_t seed, uint64_t pass, uint64_t n);
  uint64_t operator()(uint64_t i) const;
  uint64_t size() const { return n_; }

 private:
  PhiloxStream stream_;
  uint64_t n_;
  int half_bits_;
};

/// Sample `position` of the endless order over n records: pass = position / n, place in the pass permuted by (seed,
/// pass).
uint64_t record_at(uint64_t seed, uint64_t position, uint64_t n);

/// Whether record i is held out: keyed by (seed, i), with probability about `fraction`.
bool held_out(uint64_t seed, uint64_t record, double fraction);

}  // namespace tutti
