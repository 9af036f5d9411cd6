// The loop of an evaluation. Each rank adds up its own micro-batches, and one all-gather of bytes
// joins them.
#include "eval/evaluate.h"

#include "comm/gather.h"

namespace tutti {

Metrics evaluate(const Model& model, Placement& placement, const Dataset& source, int64_t records,
                 const Batch& batch, uint64_t seed, int64_t step, Channel& channel) {
  const int64_t classes = placement.output_width();
  Metrics mine(model.task, classes);

  // Micro-batches are dealt to lanes, not to ranks, so each is computed in the same way on every
  // layout. The last one is padded.
  std::vector<at::Tensor> tensors;
  for (int64_t m = 0; m * batch.micro_batch_size < records; ++m) {
    const int lane = static_cast<int>(m % batch.lanes);
    if (!placement.computes(lane)) continue;
    read_eval(source, model.data, m * batch.micro_batch_size, records, tensors);
    if (model.check) model.check(tensors);
    const Pass pass{seed, step, lane, 0, m * batch.micro_batch_size, 0, false};
    if (const auto evaluated = placement.forward(pass, tensors))
      mine.add(evaluated->loss.sum, evaluated->loss.count, evaluated->output, evaluated->data,
               model.data);
  }

  // Every rank merges all parts in rank order. Sums are exact, so any order would give the same.
  if (channel.size() == 1) return mine;
  Metrics all(model.task, classes);
  for (const std::string& part : gather_bytes(mine.bytes(), channel)) all.merge(part);
  return all;
}

}  // namespace tutti
