// Questions that both backends have about instructions, answered from the plan and the shape of the
// model.
#include "engine/station.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "plan/search/link_bytes.h"

namespace tutti {

Station::Station(const Model& model, const ModelShape& shape, const Plans& plans, int rank)
    : model_(model), shape_(shape), plan_(plans.steps), rank_(rank) {
  // Evaluation gathers slices of parameters (ZeRO-3): then nobody can compute a lane alone.
  for (const Queue& queue : plans.evaluation.programs[rank].queues)
    for (const Instruction& i : queue.instructions)
      gathers_ = gathers_ || (i.op == Op::kGather && members_of(plans.evaluation, i).size() > 1);
}

bool Station::counts_loss(const Instruction& forward) const {
  // Of all columns the first one counts, and a forward that is recomputed counts once.
  return !forward.again && shape_.blocks[forward.block].column == 0 && is_end(forward);
}

bool Station::is_end(const Instruction& forward) const {
  const BlockShape& block = shape_.blocks[forward.block];
  return block.layer + 1 == shape_.layers() &&
         forward.segment + 1 == static_cast<int>(block.segments.size());
}

bool Station::owns(int lane) const {
  const std::vector<int>& lanes = plan_.places[rank_].lanes;
  return std::find(lanes.begin(), lanes.end(), lane) != lanes.end();
}

const OutputShape& Station::output_of(const Instruction& exchange) const {
  const auto& outputs = shape_.blocks[exchange.block].segments[exchange.segment].outputs;
  TUTTI_CHECK(exchange.output >= 0 && exchange.output < static_cast<int>(outputs.size()),
              "{} has no output {}", to_string(exchange), exchange.output);
  return outputs[exchange.output];
}

int64_t Station::exchanged_bytes(const Instruction& exchange) const {
  return tutti::exchanged_bytes(output_of(exchange), exchange);
}

int64_t Station::scattered_element_bytes(const Instruction& exchange) const {
  // Values are scattered in the type that the segment reads, gradients of inputs in
  // that of the output.
  const OutputShape& out = output_of(exchange);
  return exchange.part != Part::kInput ? out.read_element_bytes : out.element_bytes;
}

int64_t Station::output_width() const {
  // The first border of that name: columns have outputs of equal width.
  if (model_.task == Task::kLoss) return 0;
  for (const Block& block : model_.blocks)
    for (const auto& segment : block.segments)
      for (const Border& border : segment->outputs())
        if (border.name == model_.output)
          return border.dims.back() * (model_.output_sliced ? model_.columns : 1);
  throw Error(fmt::format("the model has no border {}", model_.output));
}

}  // namespace tutti
