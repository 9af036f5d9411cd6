#include "engine/device/updates.h"

namespace tutti {

DeviceUpdates::DeviceUpdates(const MeshParts& parts, const MeshPlace& place, const LowCopies& low,
                             const StateKernels& kernels, DeviceCommit& commit)
    : p_(parts),
      place_(place),
      low_(low),
      kernels_(kernels),
      commit_(commit),
      squares_(parts.shape.blocks.size()),
      updates_(parts.shape.blocks.size()) {
  for (const Queue& queue : p_.program().queues)
    for (const Instruction& i : queue.instructions) {
      if (i.op == Op::kNorm) prepare_norm(i);
      if (i.op == Op::kUpdate) prepare_update(i);
    }
}

void DeviceUpdates::prepare_norm(const Instruction& i) {
  std::vector<StateChunk> chunks;
  for (const StateChunk& chunk : commit_.tables().units[i.block].counted)
    if (place_.owned(i.block).contains(chunk.at)) chunks.push_back(chunk);
  squares_[i.block] = commit_.on_device(chunks);
}

void DeviceUpdates::prepare_update(const Instruction& i) {
  if (first_ == 0) first_ = i.id;
  const int unit = i.block;
  const Held& held = p_.units.held(unit);
  UpdateArguments& update = updates_[unit] = commit_.update_of(unit, held.moments);
  if (update.chunk_count == 0) return;
  update.parameters = p_.memory.floats(i.reads[2]) - held.parameters.begin;
  update.gradients = p_.gradient(i.reads[1]);
  for (int k = 0; k < p_.options.optimizer_slots; ++k)
    update.slots[k] = p_.memory.floats(i.reads[3]) + k * align_up(held.moments.size(), kAlign) - held.moments.begin;
  // What is gathered or fetched has none here: its copies lie where it comes to.
  if (void* low = low_.of(p_.memory.of(i.writes[0])); low != nullptr)
    update.low = static_cast<uint16_t*>(low) - held.parameters.begin;
  else
    update.precision = Precision::kFloat32;
}

void DeviceUpdates::put_norm(const Instruction& norm, Stream stream) {
  commit_.count_squares(stream, p_.gradient(norm.reads[0]), squares_[norm.block]);
}

void DeviceUpdates::put_update(const Instruction& update, Stream stream) const {
  if (updates_[update.block].chunk_count > 0) kernels_.update(stream, updates_[update.block]);
}

}  // namespace tutti
