// A data slot is known by its buffers: a Load that names buffers of an earlier one fills the same
// slot. Buffers that are lent have no memory of the rank; after each Load the loader's tensors take
// their place.
#include "engine/data_slots.h"

#include "model/core/device_tensor.h"

namespace tutti {

DataSlots::DataSlots(const Model& model, const Program& program,
                     const std::function<std::byte*(int buffer)>& memory, at::Device on)
    : program_(program) {
  for (const Instruction& i : program.queues[0].instructions) {
    if (i.op != Op::kLoad || slot_of_.contains(buffer_of(i, OperandRole::kData))) continue;

    // The first Load into these buffers makes their slot.
    std::vector<at::Tensor>& tensors = slots_.emplace_back();
    const auto buffers = operands_of(i, OperandRole::kData);
    for (size_t d = 0; d < model.data.size(); ++d) {
      const int b = buffers.at(d)->buffer;
      if (!program.buffers[b].lent)
        tensors.push_back(view_on(on, memory(b), model.data[d].dims, model.data[d].type));
      slot_of_[b] = slots_.size() - 1;
    }
  }
}

size_t DataSlots::slot_of(const Instruction& load) const {
  return slot_of_.at(buffer_of(load, OperandRole::kData));
}

const std::vector<at::Tensor>& DataSlots::filled_by(const Instruction& load) const {
  static const std::vector<at::Tensor> kNone;
  return program_.buffers[buffer_of(load, OperandRole::kData)].lent ? kNone : slots_[slot_of(load)];
}

void DataSlots::lend(const Instruction& load, const std::vector<at::Tensor>& tensors) {
  slots_[slot_of(load)] = tensors;
}

std::span<const at::Tensor> DataSlots::read_by(const Instruction& instruction) const {
  for (int b : instruction.flow.in)
    if (const auto it = slot_of_.find(b); it != slot_of_.end()) return slots_[it->second];
  return {};
}

}  // namespace tutti
