#include "engine/data_slots.h"

#include "model/device_tensor.h"

namespace tutti {

DataSlots::DataSlots(const Model& model, const Program& program, const std::function<std::byte*(int buffer)>& memory,
                     at::Device on) {
  for (const Instruction& i : program.queues[0].instructions) {
    if (i.op != Op::kLoad || slot_of_.contains(i.writes[0])) continue;
    std::vector<at::Tensor>& tensors = slots_.emplace_back();
    for (size_t d = 0; d < model.data.size(); ++d) {
      const Border& border = model.data[d];
      tensors.push_back(view_on(on, memory(i.writes[d]), border.dims, border.type));
      slot_of_[i.writes[d]] = slots_.size() - 1;
    }
  }
}

std::span<const at::Tensor> DataSlots::read_by(const Instruction& instruction) const {
  for (int b : instruction.flow.in)
    if (const auto it = slot_of_.find(b); it != slot_of_.end()) return slots_[it->second];
  return {};
}

}  // namespace tutti
