#include "engine/held.h"

#include <algorithm>

#include "base/error.h"

namespace tutti {

std::vector<Held> held_by(const ModelShape& shape, const MeshOptions& options, int rank) {
  const MeshPlaces places = mesh_places(shape, options);
  const Coordinates me = options.mesh.at(rank);
  std::vector<Held> held(shape.blocks.size());
  for (size_t u = 0; u < held.size(); ++u) {
    const Coordinates home = places.home(shape, static_cast<int>(u));
    if (home.pipeline != me.pipeline || home.tensor != me.tensor) continue;
    const Range all{0, shape.blocks[u].unit_size}, slice = places.slices[u][options.mesh.shard(me.data)];
    held[u] = {options.zero == 3 ? slice : all, options.zero == 0 ? all : slice};
  }
  return held;
}

std::vector<EntryShape> state_entries(const ModelShape& shape, const std::vector<std::string>& slots) {
  std::vector<EntryShape> entries;
  for (const BlockShape& block : shape.blocks)
    for (const ParameterShape& p : block.parameters) {
      entries.push_back({p.name, "parameter", p.dims});
      for (size_t k = 0; p.role == Role::kTrained && k < slots.size(); ++k)
        entries.push_back({p.name, slots[k], p.dims});
    }
  return entries;
}

MeshUnits::MeshUnits(const Model& model, const ModelShape& shape, std::vector<Held> held,
                     std::vector<std::string> slots, uint64_t seed, std::vector<UnitMemory> memory, Accounts& accounts,
                     Device* device)
    : shape_(shape),
      held_(std::move(held)),
      slot_names_(std::move(slots)),
      memory_(std::move(memory)),
      device_(device),
      entries_(state_entries(shape, slot_names_)) {
  TUTTI_CHECK(held_.size() == shape.blocks.size() && memory_.size() == held_.size(), "{} units, {} held, {} placed",
              shape.blocks.size(), held_.size(), memory_.size());
  take_memory(accounts);
  place_copies();
  size_t entry = 0;
  for (size_t b = 0; b < shape.blocks.size(); ++b) {
    const int unit = static_cast<int>(b);
    size_t own = 0;  // shape lists only the block's own parameters; the model also those it shares
    for (const Parameter& parameter : model.blocks[b].parameters) {
      if (!parameter.shared_with.empty()) continue;
      const ParameterShape& p = shape.blocks[b].parameters[own++];
      const int kept = p.role == Role::kTrained ? static_cast<int>(slot_names_.size()) : 0;
      for (int slot = -1; slot < kept; ++slot, ++entry) {
        const Range part = overlap(range(unit, slot), {p.offset, p.offset + p.size});
        if (part.empty()) continue;
        const std::span<float> values = on_host(unit, slot, part);
        pieces_.push_back({entry, {part.begin - p.offset, part.end - p.offset}, values});
        if (slot < 0) {
          initialise_range(parameter, p.name, seed, part.begin - p.offset, values);
        } else {
          std::fill(values.begin(), values.end(), 0.0f);
        }
      }
    }
  }
  upload();
}

MeshUnits::~MeshUnits() {
  if (device_ != nullptr) device_->give_back_pinned(mirror_);
}

void MeshUnits::take_memory(Accounts& accounts) {
  size_t bytes = 0;
  const auto lacks = [this](size_t u) { return !held_[u].moments.empty() && memory_[u].slots.empty(); };
  const auto floats = [this](size_t u) { return align_up(held_[u].moments.size(), kAlign); };
  for (size_t u = 0; u < held_.size(); ++u) {
    TUTTI_CHECK(held_[u].parameters.empty() || memory_[u].parameters != nullptr, "unit {} has no place", u);
    TUTTI_CHECK(memory_[u].slots.empty() || memory_[u].slots.size() == slot_names_.size(),
                "unit {} has places for {} slots of {}", u, memory_[u].slots.size(), slot_names_.size());
    if (lacks(u)) bytes += static_cast<size_t>(floats(u)) * slot_names_.size() * sizeof(float);
  }
  if (bytes == 0) return;
  moments_ = std::make_unique<Arena>(BufferKind::kMoment, bytes, accounts, device_);
  for (size_t u = 0; u < held_.size(); ++u) {
    if (!lacks(u)) continue;
    for (size_t k = 0; k < slot_names_.size(); ++k) memory_[u].slots.push_back(moments_->take_floats(floats(u)).data());
  }
}

/// What lies on the device and where its mirror is; without a device nothing.
void MeshUnits::place_copies() {
  if (device_ == nullptr) return;
  size_t at = 0;
  for (size_t u = 0; u < held_.size(); ++u) {
    const int unit = static_cast<int>(u);
    copies_.emplace_back();
    for (int slot = -1; slot < static_cast<int>(slot_names_.size()); ++slot) {
      const int64_t size = range(unit, slot).size();
      copies_.back().push_back({size > 0 ? values(unit, slot) : nullptr, size, at});
      at += static_cast<size_t>(align_up(size, kAlign));
    }
  }
  mirror_ = device_->take_pinned(std::max<size_t>(at, kAlign) * sizeof(float));
  std::fill(mirror_.begin(), mirror_.end(), std::byte{0});
  stream_ = device_->make_stream();
}

std::span<float> MeshUnits::on_host(int unit, int slot, Range part) const {
  const int64_t at = part.begin - range(unit, slot).begin;
  const auto size = static_cast<size_t>(part.size());
  if (device_ == nullptr) return {values(unit, slot) + at, size};
  return {reinterpret_cast<float*>(mirror_.data()) + copy_of(unit, slot).mirror_at + at, size};
}

float* MeshUnits::parameters(int unit, int64_t offset) const {
  const Range& range = held_[unit].parameters;
  TUTTI_CHECK(range.contains(offset), "parameters of {} at {}: [{}, {}) is held", shape_.blocks[unit].name, offset,
              range.begin, range.end);
  return memory_[unit].parameters + (offset - range.begin);
}

std::vector<float*> MeshUnits::slots(int unit, int64_t offset) const {
  const Range& range = held_[unit].moments;
  TUTTI_CHECK(range.contains(offset), "moments of {} at {}: [{}, {}) is held", shape_.blocks[unit].name, offset,
              range.begin, range.end);
  std::vector<float*> pointers;
  for (float* slot : memory_[unit].slots) pointers.push_back(slot + (offset - range.begin));
  return pointers;
}

void MeshUnits::copy_out(Stream stream) const {
  for (const auto& unit : copies_)
    for (const Copy& copy : unit)
      if (copy.size > 0)
        device_->copy(stream, mirror_.data() + copy.mirror_at * sizeof(float), copy.values,
                      static_cast<size_t>(copy.size) * sizeof(float));
}

void MeshUnits::upload() const {
  if (device_ == nullptr) return;
  for (const auto& unit : copies_)
    for (const Copy& copy : unit)
      if (copy.size > 0)
        device_->copy(stream_, copy.values, mirror_.data() + copy.mirror_at * sizeof(float),
                      static_cast<size_t>(copy.size) * sizeof(float));
  device_->synchronise(stream_);
}

}  // namespace tutti
