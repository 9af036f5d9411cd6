#include "engine/nonfinite.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "data/loader.h"

namespace tutti {

namespace {

/// All micro-batches, since the other ranks wait for this one's part of each; who idles in some repeats its last.
NonFinitePlace find_in_losses(Placement& placement, const LoaderOptions& options, Loader& loader, size_t turns,
                              uint64_t seed) {
  NonFinitePlace first{-1, 0, -1, 1};
  Pass pass;
  const std::vector<at::Tensor>* batch = nullptr;
  for (size_t turn = 0; turn < turns; ++turn) {
    const auto [lane, micro] = options.sequence.at(std::min(turn, options.sequence.size() - 1));
    if (turn < options.sequence.size()) {
      pass = placement.pass_of(seed, options.first_step, lane, micro);
      batch = &loader.next(options.first_step, lane, micro);
    }
    int block = -1;
    placement.watch(&block);
    const auto evaluated = placement.forward(pass, *batch);
    const bool loss = evaluated && !std::isfinite(evaluated->loss.sum);
    if (first.lane < 0 && (loss || block >= 0)) first = {lane, micro, block, 0};
  }
  placement.watch(nullptr);
  return first;
}

}  // namespace

NonFinitePlace find_nonfinite(const Model& model, const ModelShape& shape, Placement& placement, LoaderOptions options,
                              uint64_t seed, RankContext& context) {
  const int64_t step = options.first_step;
  options.depth = 1;
  const size_t turns = options.sequence.size();
  std::erase_if(options.sequence, [](const MicroBatch& m) { return m.idle(); });
  Loader loader(options, context.clock, &context.control.cancel);
  if (placement.runner() == nullptr) return find_in_losses(placement, options, loader, turns, seed);
  ModelRunner& runner = *placement.runner();
  std::vector<at::Tensor> gradients;
  std::vector<float*> pointers;
  for (const BlockShape& block : shape.blocks) {
    gradients.push_back(at::zeros({block.gradient_size}, runner.loss_border().options().dtype(at::kFloat)));
    pointers.push_back(static_cast<float*>(gradients.back().data_ptr()));
  }
  int blocks = static_cast<int>(model.blocks.size());
  for (const auto [lane, micro] : options.sequence) {
    const auto tensors = placement.placed(loader.next(step, lane, micro));
    const Pass pass = placement.pass_of(seed, step, lane, micro);
    runner.forward_all(pass, tensors);
    placement.settle("repeated forward");
    if (!std::isfinite(runner.loss().sum)) return {lane, micro, runner.first_nonfinite_block(), 0};
    for (int b = blocks - 1; b >= 0; --b) {
      for (int s = static_cast<int>(model.blocks[b].segments.size()) - 1; s >= 0; --s)
        runner.backward(b, s, pass, tensors, pointers);
      placement.settle("repeated backward");
      if (!all_finite(gradients[b])) return {lane, micro, b, 1};
    }
  }
  return {};
}

std::string describe_nonfinite(const std::vector<NonFinitePlace>& places, int64_t step, const ModelShape& shape) {
  const NonFinitePlace* first = nullptr;
  // Of a model that is cut several ranks see the same micro-batch: the first block of them all is where it began.
  const auto order = [](const NonFinitePlace& place) {
    return std::tuple(place.lane, place.micro, static_cast<uint32_t>(place.block));
  };
  for (const NonFinitePlace& place : places)
    if (place.lane >= 0 && (first == nullptr || order(place) < order(*first))) first = &place;
  const auto unsure = [](const NonFinitePlace& place) { return place.gradient != 0; };
  if (first == nullptr && std::any_of(places.begin(), places.end(), unsure))
    return fmt::format("step {}: a gradient is not finite, though every loss is; lower train.lr or set train.clip",
                       step);
  if (first == nullptr)  // every lane alone is finite: their sum overflowed
    return fmt::format(
        "step {}: the sum of the gradients over all lanes is not finite; lower train.lr or set train.clip", step);
  const std::string block = first->block >= 0 ? shape.blocks[first->block].name : "";
  const std::string where = fmt::format("step {}, lane {}, micro-batch {}", step, first->lane, first->micro);
  if (first->gradient != 0) return fmt::format("{}: the gradient of block {} is not finite", where, block);
  if (first->block < 0) return fmt::format("{}: the loss is not finite", where);
  return fmt::format("{}: the loss is not finite; the first block with a non-finite output is {}", where, block);
}

}  // namespace tutti
