// Kernels take addresses of the first float of a unit and chunks counted from there, whatever part
// of it a rank has. So an address is moved back by what comes before that part, and no chunk
// reaches into what is not there.
#include "engine/device/device_updates.h"

namespace tutti {

DeviceUpdates::DeviceUpdates(const EngineParts& parts, const RankDevice& rank, const LowCopies& low,
                             DeviceCommit& commit)
    : p_(parts),
      low_(low),
      kernels_(rank.library->state),
      commit_(commit),
      squares_(parts.training.shape.blocks.size()),
      updates_(parts.training.shape.blocks.size()) {
  for (const Queue& queue : p_.program().queues)
    for (const Instruction& i : queue.instructions) {
      if (i.op == Op::kNorm) prepare_norm(i);
      if (i.op == Op::kUpdate) prepare_update(i);
    }
}

void DeviceUpdates::prepare_norm(const Instruction& i) {
  // Only chunks whose sums this rank owns, and that count in norms: over all ranks every
  // chunk is counted once.
  for (const Operand* sum : operands_of(i, OperandRole::kSum)) {
    std::vector<StateChunk> chunks;
    for (const StateChunk& chunk : commit_.tables().units[sum->unit].counted)
      if (sum->range.contains(chunk.at)) chunks.push_back(chunk);
    squares_[sum->unit] = commit_.on_device(chunks);
  }
}

void DeviceUpdates::prepare_update(const Instruction& i) {
  if (first_ == 0) first_ = i.id;

  const int unit = i.block;
  const Held& held = p_.state.units->held(unit);
  UpdateArguments& update = updates_[unit] = commit_.update_of(unit, held.moments);
  if (update.chunk_count == 0) return;

  update.parameters =
      p_.state.memory->floats(buffer_of(i, OperandRole::kParameter)) - held.parameters.begin;
  update.gradients = p_.gradient(buffer_of(i, OperandRole::kGradient));

  // Slots follow one another in the buffer of moments, each on a border.
  for (int k = 0; k < p_.plans.steps.optimizer_slots; ++k)
    update.slots[k] = p_.state.memory->floats(buffer_of(i, OperandRole::kMoment)) +
                      k * align_up(held.moments.size(), kAlign) - held.moments.begin;
  // Parameters that are gathered or fetched before use have no low copy here: it is where they
  // arrive, and is written there.
  if (void* low = low_.of(p_.state.memory->of(buffer_of(i, OperandRole::kParameter)));
      low != nullptr)
    update.low = static_cast<uint16_t*>(low) - held.parameters.begin;
  else
    update.precision = Precision::kFloat32;
}

void DeviceUpdates::put_norm(const Instruction& norm, Stream stream) {
  for (const Operand* sum : operands_of(norm, OperandRole::kSum))
    commit_.count_squares(stream, p_.gradient(sum->buffer), squares_[sum->unit]);
}

void DeviceUpdates::put_update(const Instruction& update, Stream stream) const {
  if (updates_[update.block].chunk_count > 0) kernels_.update(stream, updates_[update.block]);
}

}  // namespace tutti
