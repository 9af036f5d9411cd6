// The vote on the host's cores: what all ranks tell each other at the end of a step. Each rank
// fills in one record of constant size, all of them are gathered on every rank (a small
// all-gather), and every rank adds them up alike. On a device the vote is instead a sum over ranks
// (an all-reduce) of an array of doubles (VoteLayout in device/state_kernels.h).
//
// Its completion is the commit of the step: nothing of the step is written before it.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "base/exact_sum.h"

namespace tutti {

struct Vote {
  /// of the reduced gradient before it is divided: this rank's slices
  ExactSum squares;
  ExactSum loss;      ///< of this rank's lanes, summed over valid targets
  ExactSum targets;   ///< valid targets of this rank's lanes, by weight where the loss weighs them
  uint32_t stop = 0;  ///< this rank was asked to stop after the step
  uint32_t saving = 0;  ///< its share of a checkpoint is still being written

  void merge(const Vote& other) {
    squares.merge(other.squares);
    loss.merge(other.loss);
    targets.merge(other.targets);
    stop |= other.stop;
    saving |= other.saving;
  }
  double mean_loss() const { return loss.value() / divisor(); }
  double gradient_norm() const { return std::sqrt(squares.value()) / divisor(); }
  /// What sums are divided by; 1 if there was nothing to sum.
  double divisor() const {
    const double count = targets.value();
    return count > 0 ? count : 1;
  }
  bool finite() const { return squares.finite() && loss.finite() && targets.finite(); }
};

inline Vote merge(std::span<const Vote> votes) {
  Vote all = votes[0];
  for (const Vote& vote : votes.subspan(1)) all.merge(vote);
  return all;
}

}  // namespace tutti
