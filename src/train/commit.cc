#include "train/commit.h"

#include <cmath>

namespace tutti {

Vote vote_of(const Vote& mine, Channel& channel) {
  std::vector<Vote> votes(channel.size());
  channel.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(votes)));
  return merge(votes);
}

StepScalars scalars_of(const TrainConfig& train, const StepRequest& request, const Vote& all) {
  StepScalars scalars;
  scalars.step = request.updates;
  scalars.lr = request.lr;
  const double factor = train.clip_by == "norm" ? clip_factor(all.gradient_norm(), train.clip) : 1;
  scalars.gradient_scale = factor / all.divisor();
  if (train.clip_by == "value") scalars.clip_value = train.clip;
  return scalars;
}

void share_unit_squares(std::vector<ExactSum>& by_unit, Channel& channel) {
  const size_t units = by_unit.size();
  std::vector<ExactSum> all(units * channel.size());
  channel.all_gather(std::as_bytes(std::span(by_unit)), std::as_writable_bytes(std::span(all)));
  for (size_t u = 0; u < units; ++u) {
    by_unit[u] = {};
    for (int r = 0; r < channel.size(); ++r) by_unit[u].merge(all[r * units + u]);
  }
}

double unit_clip(const TrainConfig& train, const ExactSum& squares, const Vote& all) {
  return clip_factor(std::sqrt(squares.value()) / all.divisor(), train.clip);
}

}  // namespace tutti
