#include "train/units.h"

namespace tutti {

namespace {

size_t unit_bytes(const ModelShape& shape) {
  size_t bytes = 0;
  for (const auto& block : shape.blocks) bytes += align_up(block.unit_size, kAlign) * sizeof(float);
  return bytes;
}

}  // namespace

Units::Units(const Model& model, const ModelShape& shape, const std::vector<std::string>& slots, uint64_t seed,
             Accounts& accounts)
    : shape_(shape),
      slot_names_(slots),
      parameter_arena_(BufferKind::kParameter, unit_bytes(shape), accounts),
      moment_arena_(BufferKind::kMoment, unit_bytes(shape) * slots.size(), accounts) {
  for (size_t b = 0; b < shape.blocks.size(); ++b) {
    const BlockShape& block = shape.blocks[b];
    parameters_.push_back(parameter_arena_.take_floats(block.unit_size));
    slots_.emplace_back();
    for (size_t k = 0; k < slots.size(); ++k) slots_.back().push_back(moment_arena_.take_floats(block.unit_size));
    size_t own = 0;  // shape lists only the block's own parameters; the model also those it shares
    for (const Parameter& parameter : model.blocks[b].parameters) {
      if (!parameter.shared_with.empty()) continue;
      const ParameterShape& p = block.parameters[own++];
      initialise(parameter, p.name, seed, parameters_.back().subspan(p.offset, p.size));
    }
  }
}

std::vector<float*> Units::slots(int unit, int64_t offset) const {
  std::vector<float*> pointers;
  for (const auto& slot : slots_[unit]) pointers.push_back(slot.data() + offset);
  return pointers;
}

State Units::state(const StateCounters& counters) const {
  State state;
  state.counters = counters;
  for (size_t b = 0; b < shape_.blocks.size(); ++b)
    for (const ParameterShape& p : shape_.blocks[b].parameters) {
      state.entries.push_back({p.name, "parameter", p.dims, parameters_[b].subspan(p.offset, p.size)});
      for (size_t k = 0; p.role == Role::kTrained && k < slot_names_.size(); ++k)
        state.entries.push_back({p.name, slot_names_[k], p.dims, slots_[b][k].subspan(p.offset, p.size)});
    }
  return state;
}

}  // namespace tutti
