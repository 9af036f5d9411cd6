// The commit of a step on the host's cores: what ranks count goes into the vote, and what updates
// are computed with follows from it.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "comm/collectives.h"
#include "config/job.h"
#include "engine/parts.h"
#include "engine/verdict.h"
#include "engine/vote.h"
#include "launch/local.h"
#include "model/core/runner.h"
#include "optim/optimizer.h"

namespace tutti {

class HostCommit {
 public:
  /// All arguments must outlive it.
  HostCommit(const TrainConfig& train, RankContext& context, Channel& channel, const Saving& saving,
             size_t units);

  /// Runs a step, in which vote() is called once, and says what it came to.
  StepVerdict run(const StepRequest& request, const std::function<void()>& step);

  void count_loss(const Loss& loss);
  /// Counts the squares of a parameter chunk of the unit's reduced gradient. Any thread may call
  /// it.
  void count_squares(int unit, const float* gradient, int64_t size);
  /// After it every rank knows the same norm, loss and decision; one that is not finite ends the
  /// step. Collective.
  void vote(const std::function<void()>& begun);
  /// What a vote that has ended came to, for adopt() on another rank.
  const Decision& decided() const { return decided_; }
  /// Takes the decision over as if this step's vote had ended with it on this rank, and returns
  /// what run() would have returned.
  StepVerdict adopt(const StepRequest& request, const Decision& decision);
  /// What the unit's update is computed with.
  StepScalars scalars(int unit) const;

 private:
  void share_unit_squares();
  void settle_scalars();
  bool by_unit() const { return train_.clip_by == ClipBy::kUnit; }

  const TrainConfig& train_;
  RankContext& context_;
  Channel& channel_;
  const Saving& saving_;
  StepRequest request_;
  Vote mine_, all_;
  std::mutex mutex_;  // of squares: sums over stages have a queue of their own
  // by unit, for train.clip_by = "unit": mine, then all ranks'
  std::vector<ExactSum> unit_squares_;
  StepScalars scalars_;
  Decision decided_;
};

}  // namespace tutti
