// The vote: what all ranks tell each other at the end of a step, in one message of constant size. Its completion is the
// commit of the step: nothing of the step is written before it.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "base/exact_sum.h"

namespace tutti {

struct Vote {
  ExactSum squares;     ///< of the reduced, not yet normalised gradient: this rank's slices
  ExactSum loss;        ///< of this rank's lanes, summed over valid targets
  int64_t targets = 0;  ///< valid targets of this rank's lanes
  uint32_t stop = 0;    ///< this rank was asked to stop after the step
  uint32_t reserved = 0;

  void merge(const Vote& other) {
    squares.merge(other.squares);
    loss.merge(other.loss);
    targets += other.targets;
    stop |= other.stop;
  }
  double mean_loss() const { return targets > 0 ? loss.value() / static_cast<double>(targets) : 0; }
  double gradient_norm() const { return targets > 0 ? std::sqrt(squares.value()) / static_cast<double>(targets) : 0; }
  bool finite() const { return squares.finite() && loss.finite(); }
};

inline Vote merge(std::span<const Vote> votes) {
  Vote all = votes[0];
  for (const Vote& vote : votes.subspan(1)) all.merge(vote);
  return all;
}

}  // namespace tutti
