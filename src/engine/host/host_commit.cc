// Collects losses and squares from all queues, votes, and derives the scalars of the update from
// the merged record. The vote's bytes are kept, so that another rank can adopt them.
#include "engine/host/host_commit.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "comm/fold.h"
#include "engine/nonfinite.h"

namespace tutti {

HostCommit::HostCommit(const TrainConfig& train, RankContext& context, Channel& channel,
                       const Saving& saving, size_t units)
    : train_(train), context_(context), channel_(channel), saving_(saving), unit_squares_(units) {}

StepVerdict HostCommit::run(const StepRequest& request, const std::function<void()>& step) {
  request_ = request;
  mine_ = {};
  std::fill(unit_squares_.begin(), unit_squares_.end(), ExactSum{});

  // A vote that is not finite throws, which stops every queue before anything of the step is
  // written.
  bool finite = true;
  try {
    step();
  } catch (const NonFinite&) {
    finite = false;
  }
  return {all_.mean_loss(), all_.gradient_norm(), finite, all_.stop != 0, all_.saving != 0};
}

StepVerdict HostCommit::adopt(const StepRequest& request, const Decision& decision) {
  const size_t squares = unit_squares_.size() * sizeof(ExactSum);
  TUTTI_CHECK(decision.step == request.step && decision.vote.size() == sizeof(Vote) + squares,
              "a vote of step {} in {} bytes for step {}", decision.step, decision.vote.size(),
              request.step);
  request_ = request;

  // The bytes are those that vote() kept: the merged record, then the squares by unit.
  std::memcpy(&all_, decision.vote.data(), sizeof(Vote));
  std::memcpy(unit_squares_.data(), decision.vote.data() + sizeof(Vote), squares);
  decided_ = decision;
  settle_scalars();
  return {all_.mean_loss(), all_.gradient_norm(), true, all_.stop != 0, all_.saving != 0};
}

void HostCommit::count_loss(const Loss& loss) {
  mine_.loss.add(loss.sum);
  mine_.targets.add(loss.count);
}

void HostCommit::count_squares(int unit, const float* gradient, int64_t size) {
  // Squares are summed outside of the lock, since most of the time goes there.
  const double squares = sum_squares(gradient, size);
  const std::lock_guard lock(mutex_);
  mine_.squares.add(squares);
  if (by_unit()) unit_squares_[unit].add(squares);
}

void HostCommit::vote(const std::function<void()>& begun) {
  saving_.copying.wait(true);
  mine_.stop = context_.control.stop.load() != 0 ? 1 : 0;
  mine_.saving = saving_.writing ? 1 : 0;

  // Every rank merges the same records in the same order, so all come to the same
  // decision.
  std::vector<Vote> votes(channel_.size());
  channel_.all_gather(std::as_bytes(std::span(&mine_, 1)), std::as_writable_bytes(std::span(votes)),
                      begun);
  all_ = merge(votes);
  if (!all_.finite()) throw NonFinite();
  if (by_unit()) share_unit_squares();
  settle_scalars();

  // From here on the step is committed: whoever did not come so far can do so by this.
  decided_.step = request_.step;
  decided_.vote.resize(sizeof(Vote) + unit_squares_.size() * sizeof(ExactSum));
  std::memcpy(decided_.vote.data(), &all_, sizeof(Vote));
  std::memcpy(decided_.vote.data() + sizeof(Vote), unit_squares_.data(),
              unit_squares_.size() * sizeof(ExactSum));
}

void HostCommit::settle_scalars() {
  scalars_ = {};
  scalars_.step = request_.updates;
  scalars_.lr = request_.lr;

  // Gradients are sums over all targets. One factor makes them means and clips them, so that no
  // gradient is walked over twice.
  const double factor =
      train_.clip_by == ClipBy::kNorm ? clip_factor(all_.gradient_norm(), train_.clip) : 1;
  scalars_.gradient_scale = factor / all_.divisor();
  if (train_.clip_by == ClipBy::kValue) scalars_.clip_value = train_.clip;
}

/// Every rank summed the squares of its slices; a unit's are all ranks'.
void HostCommit::share_unit_squares() {
  const size_t units = unit_squares_.size();
  std::vector<ExactSum> all(units * channel_.size());
  channel_.all_gather(std::as_bytes(std::span(unit_squares_)),
                      std::as_writable_bytes(std::span(all)));
  for (size_t u = 0; u < units; ++u) {
    unit_squares_[u] = {};
    for (int r = 0; r < channel_.size(); ++r) unit_squares_[u].merge(all[r * units + u]);
  }
}

StepScalars HostCommit::scalars(int unit) const {
  StepScalars scalars = scalars_;
  if (by_unit())
    scalars.gradient_scale *=
        clip_factor(std::sqrt(unit_squares_[unit].value()) / all_.divisor(), train_.clip);
  return scalars;
}

}  // namespace tutti
