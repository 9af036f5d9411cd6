#include "train/evaluate.h"

#include <algorithm>

namespace tutti {

namespace {

/// Every rank's bytes, in rank order; sizes may differ.
std::vector<std::string> gather(const std::string& mine, Channel& channel) {
  std::vector<uint64_t> sizes(static_cast<size_t>(channel.size()));
  const uint64_t size = mine.size();
  channel.all_gather(std::as_bytes(std::span(&size, 1)), std::as_writable_bytes(std::span(sizes)));
  const uint64_t widest = *std::max_element(sizes.begin(), sizes.end());
  std::string padded = mine, all(widest * sizes.size(), '\0');
  padded.resize(widest);
  channel.all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> parts;
  for (size_t r = 0; r < sizes.size(); ++r) parts.push_back(all.substr(r * widest, sizes[r]));
  return parts;
}

}  // namespace

Metrics evaluate(const Model& model, Placement& placement, const Dataset& source, int64_t records, const Batch& batch,
                 Range lanes, uint64_t seed, int64_t step, Channel& channel) {
  ModelRunner& runner = placement.runner();
  const bool reads_output = model.task != Task::kLoss;
  const int64_t classes = reads_output ? runner.border(model.output).size(-1) : 0;
  Metrics mine(model.task, classes);
  std::vector<at::Tensor> tensors;
  for (int64_t m = 0; m * batch.micro_batch_size < records; ++m) {
    const int lane = static_cast<int>(m % batch.lanes);
    if (!lanes.contains(lane)) continue;
    read_eval(source, model.data, m * batch.micro_batch_size, records, tensors);
    Pass pass{seed, step, lane, 0, m * batch.micro_batch_size, 0, false};
    if (model.check) model.check(tensors);
    const auto data = placement.placed(tensors);
    runner.forward_all(pass, data);
    placement.settle("evaluation");
    const Loss loss = runner.loss();
    mine.add(loss.sum, loss.count, reads_output ? runner.border(model.output) : at::Tensor(), data, model.data);
  }
  if (channel.size() == 1) return mine;
  Metrics all(model.task, classes);
  for (const std::string& part : gather(mine.bytes(), channel)) all.merge(part);
  return all;
}

}  // namespace tutti
