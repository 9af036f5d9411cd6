// Values are initialised, loaded and saved as pieces of the state's entries, which are in host
// memory: the values themselves, or their mirror if there is a device. So all of that is the same
// on both; only upload() and copy_out() know the difference.
#include "state/units.h"

#include <algorithm>

#include "base/error.h"

namespace tutti {

namespace {

/// The parameter number `own` of those that belong to the block. The shape lists only these; the
/// model also lists the ones that the block shares.
const Parameter& own_parameter(const Block& block, size_t own) {
  for (const Parameter& parameter : block.parameters)
    if (parameter.shared_with.empty() && own-- == 0) return parameter;
  TUTTI_CHECK(false, "block {} has no such parameter", block.name);
}

}  // namespace

std::vector<Held> held_by(const Plan& plan, int rank) {
  std::vector<Held> held;
  for (const Ownership& unit : plan.ownership)
    held.push_back({range_of(unit.parameters, rank), range_of(unit.moments, rank)});
  return held;
}

std::vector<Held> all_held(const ModelShape& shape) {
  std::vector<Held> held;
  for (const BlockShape& block : shape.blocks)
    held.push_back({{0, block.unit_size}, {0, block.unit_size}});
  return held;
}

Units::Units(const Model& model, const ModelShape& shape, std::vector<Held> held,
             std::vector<std::string> slots, std::optional<uint64_t> seed,
             std::vector<UnitMemory> memory, Accounts& accounts, Device* device)
    : shape_(shape),
      held_(std::move(held)),
      slot_names_(std::move(slots)),
      memory_(std::move(memory)),
      device_(device) {
  TUTTI_CHECK(
      held_.size() == shape.blocks.size() && (memory_.empty() || memory_.size() == held_.size()),
      "{} units, {} held, {} placed", shape.blocks.size(), held_.size(), memory_.size());

  // Places first, since the pieces are spans of them.
  take_memory(accounts);
  place_copies();

  // The pieces are the parts of entries that are held here. Each element is drawn by its place in
  // the whole entry, so it does not matter which rank draws it.
  for (const EntryPlace& place : entry_places(shape, slot_names_)) {
    const size_t entry = entries_.size();
    entries_.push_back(place.shape);
    const Range part = overlap(range(place.unit, place.slot), place.floats);
    if (part.empty()) continue;
    const std::span<float> values = on_host(place.unit, place.slot, part);
    const int64_t begin = part.begin - place.floats.begin;
    pieces_.push_back({entry, {begin, begin + part.size()}, values});
    if (!seed) continue;
    if (place.slot < 0) {
      initialise_range(own_parameter(model.blocks[place.unit], place.parameter), place.shape.name,
                       *seed, begin, values);
    } else {
      std::fill(values.begin(), values.end(), 0.0f);
    }
  }
  if (seed) upload();
}

Units::~Units() {
  if (device_ != nullptr) device_->give_back_pinned(mirror_);
}

void Units::take_memory(Accounts& accounts) {
  memory_.resize(held_.size());
  const auto floats = [](Range range) { return align_up(range.size(), kAlign); };

  // How much is missing, of parameters and of slots: what the caller has placed needs nothing.
  int64_t parameters = 0, moments = 0;
  const auto lacks_values = [this](size_t u) {
    return !held_[u].parameters.empty() && memory_[u].parameters == nullptr;
  };
  const auto lacks_slots = [this](size_t u) {
    return !held_[u].moments.empty() && memory_[u].slots.empty();
  };
  for (size_t u = 0; u < held_.size(); ++u) {
    TUTTI_CHECK(memory_[u].slots.empty() || memory_[u].slots.size() == slot_names_.size(),
                "unit {} has places for {} slots of {}", u, memory_[u].slots.size(),
                slot_names_.size());
    if (lacks_values(u)) parameters += floats(held_[u].parameters);
    if (lacks_slots(u))
      moments += floats(held_[u].moments) * static_cast<int64_t>(slot_names_.size());
  }

  // One arena for each of the two, with every range on a border of its own.
  const auto arena = [&](BufferKind kind, int64_t wanted) {
    return wanted == 0 ? nullptr
                       : std::make_unique<Arena>(kind, static_cast<size_t>(wanted) * sizeof(float),
                                                 accounts, device_);
  };
  parameters_ = arena(BufferKind::kParameter, parameters);
  moments_ = arena(BufferKind::kMoment, moments);
  for (size_t u = 0; u < held_.size(); ++u) {
    if (lacks_values(u))
      memory_[u].parameters = parameters_->take_floats(floats(held_[u].parameters)).data();
    if (!lacks_slots(u)) continue;
    for (size_t k = 0; k < slot_names_.size(); ++k)
      memory_[u].slots.push_back(moments_->take_floats(floats(held_[u].moments)).data());
  }
}

/// Lists what is on the device and where its mirror is; without a device there is nothing to list.
void Units::place_copies() {
  if (device_ == nullptr) return;

  // In the mirror all units follow one another, each with its parameters and then its slots.
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

  // Pinned, so that copies run alongside the compute. At least some bytes, for a rank
  // that holds nothing.
  mirror_ = device_->take_pinned(std::max<size_t>(at, kAlign) * sizeof(float));
  std::fill(mirror_.begin(), mirror_.end(), std::byte{0});
  stream_ = device_->make_stream();
}

std::span<float> Units::on_host(int unit, int slot, Range part) const {
  const int64_t at = part.begin - range(unit, slot).begin;
  const auto size = static_cast<size_t>(part.size());
  if (device_ == nullptr) return {values(unit, slot) + at, size};
  return {reinterpret_cast<float*>(mirror_.data()) + copy_of(unit, slot).mirror_at + at, size};
}

float* Units::parameters(int unit, int64_t offset) const {
  // Offsets count from the start of the unit, and memory from the first float that is held.
  const Range& range = held_[unit].parameters;
  TUTTI_CHECK(range.contains(offset), "parameters of {} at {}: [{}, {}) is held",
              shape_.blocks[unit].name, offset, range.begin, range.end);
  return memory_[unit].parameters + (offset - range.begin);
}

std::vector<float*> Units::slots(int unit, int64_t offset) const {
  const Range& range = held_[unit].moments;
  TUTTI_CHECK(range.contains(offset), "moments of {} at {}: [{}, {}) is held",
              shape_.blocks[unit].name, offset, range.begin, range.end);
  std::vector<float*> pointers;
  for (float* slot : memory_[unit].slots) pointers.push_back(slot + (offset - range.begin));
  return pointers;
}

std::vector<StatePiece> Units::updated_pieces() const {
  const std::vector<EntryPlace> places = entry_places(shape_, slot_names_);
  std::vector<StatePiece> updated;
  for (const StatePiece& piece : pieces_) {
    const EntryPlace& place = places[piece.entry];
    const Range part = overlap(held_[place.unit].moments, place.floats);
    const Range mine =
        overlap(piece.range, {part.begin - place.floats.begin, part.end - place.floats.begin});
    if (part.empty() || mine.empty()) continue;
    updated.push_back({piece.entry, mine,
                       piece.values.subspan(static_cast<size_t>(mine.begin - piece.range.begin),
                                            static_cast<size_t>(mine.size()))});
  }
  return updated;
}

State Units::state(const StateCounters& counters) const {
  // A rank that holds everything has one piece per entry, all of it.
  TUTTI_CHECK(pieces_.size() == entries_.size(), "{} pieces of {} entries are not the whole state",
              pieces_.size(), entries_.size());
  State state{{}, counters};
  for (const StatePiece& piece : pieces_) {
    const EntryShape& entry = entries_[piece.entry];
    state.entries.push_back({entry.name, entry.slot, entry.dims, piece.values});
  }
  return state;
}

void Units::copy_out(Stream stream) const {
  for (const auto& unit : copies_)
    for (const Copy& copy : unit)
      if (copy.size > 0)
        device_->copy(stream, mirror_.data() + copy.mirror_at * sizeof(float), copy.values,
                      static_cast<size_t>(copy.size) * sizeof(float));
}

void Units::upload() const {
  if (device_ == nullptr) return;

  // Waited for, since whoever writes into the mirror next may do so at once.
  for (const auto& unit : copies_)
    for (const Copy& copy : unit)
      if (copy.size > 0)
        device_->copy(stream_, copy.values, mirror_.data() + copy.mirror_at * sizeof(float),
                      static_cast<size_t>(copy.size) * sizeof(float));
  device_->synchronise(stream_);
}

}  // namespace tutti
