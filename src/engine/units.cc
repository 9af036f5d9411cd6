#include "engine/units.h"

namespace tutti {

namespace {

size_t unit_bytes(const ModelShape& shape) {
  size_t bytes = 0;
  for (const auto& block : shape.blocks) bytes += align_up(block.unit_size, kAlign) * sizeof(float);
  return bytes;
}

std::span<float> floats_at(std::span<std::byte> bytes, size_t& at, int64_t n) {
  const std::span<std::byte> taken = bytes.subspan(at, static_cast<size_t>(n) * sizeof(float));
  at += static_cast<size_t>(align_up(n, kAlign)) * sizeof(float);
  return {reinterpret_cast<float*>(taken.data()), static_cast<size_t>(n)};
}

}  // namespace

Units::Units(const Model& model, const ModelShape& shape, const std::vector<std::string>& slots, uint64_t seed,
             Accounts& accounts, Device* device)
    : shape_(shape),
      slot_names_(slots),
      device_(device),
      parameter_arena_(BufferKind::kParameter, unit_bytes(shape), accounts, device),
      moment_arena_(BufferKind::kMoment, unit_bytes(shape) * slots.size(), accounts, device),
      parameter_bytes_(parameter_arena_.take(unit_bytes(shape))),
      moment_bytes_(moment_arena_.take(unit_bytes(shape) * slots.size())) {
  if (device != nullptr) {
    mirror_ = device->take_pinned(parameter_bytes_.size() + moment_bytes_.size());
    copies_ = device->make_stream();
  }
  size_t parameter_at = 0, moment_at = 0;
  for (size_t b = 0; b < shape.blocks.size(); ++b) {
    const BlockShape& block = shape.blocks[b];
    parameters_.push_back(floats_at(parameter_bytes_, parameter_at, block.unit_size));
    slots_.emplace_back();
    for (size_t k = 0; k < slots.size(); ++k)
      slots_.back().push_back(floats_at(moment_bytes_, moment_at, block.unit_size));
    size_t own = 0;  // shape lists only the block's own parameters; the model also those it shares
    for (const Parameter& parameter : model.blocks[b].parameters) {
      if (!parameter.shared_with.empty()) continue;
      const ParameterShape& p = block.parameters[own++];
      initialise(parameter, p.name, seed, on_host(parameters_.back().subspan(p.offset, p.size)));
    }
  }
  upload();
}

Units::~Units() {
  if (device_ != nullptr) device_->give_back_pinned(mirror_);
}

std::vector<float*> Units::slots(int unit, int64_t offset) const {
  std::vector<float*> pointers;
  for (const auto& slot : slots_[unit]) pointers.push_back(slot.data() + offset);
  return pointers;
}

std::span<float> Units::on_host(std::span<float> values) const {
  if (device_ == nullptr) return values;
  const auto* at = reinterpret_cast<const std::byte*>(values.data());
  const bool moment =
      !moment_bytes_.empty() && at >= moment_bytes_.data() && at < moment_bytes_.data() + moment_bytes_.size();
  std::byte* host = moment ? mirror_.data() + parameter_bytes_.size() + (at - moment_bytes_.data())
                           : mirror_.data() + (at - parameter_bytes_.data());
  return {reinterpret_cast<float*>(host), values.size()};
}

State Units::state(const StateCounters& counters) const {
  State state;
  state.counters = counters;
  for (size_t b = 0; b < shape_.blocks.size(); ++b)
    for (const ParameterShape& p : shape_.blocks[b].parameters) {
      state.entries.push_back({p.name, "parameter", p.dims, on_host(parameters_[b].subspan(p.offset, p.size))});
      for (size_t k = 0; p.role == Role::kTrained && k < slot_names_.size(); ++k)
        state.entries.push_back({p.name, slot_names_[k], p.dims, on_host(slots_[b][k].subspan(p.offset, p.size))});
    }
  return state;
}

void Units::copy_out(Stream stream) const {
  device_->copy(stream, mirror_.data(), parameter_bytes_.data(), parameter_bytes_.size());
  device_->copy(stream, mirror_.data() + parameter_bytes_.size(), moment_bytes_.data(), moment_bytes_.size());
}

void Units::upload() const {
  if (device_ == nullptr) return;
  device_->copy(copies_, parameter_bytes_.data(), mirror_.data(), parameter_bytes_.size());
  device_->copy(copies_, moment_bytes_.data(), mirror_.data() + parameter_bytes_.size(), moment_bytes_.size());
  device_->synchronise(copies_);
}

}  // namespace tutti
