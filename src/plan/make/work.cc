// Routes, slots, visits and uses of a rank, worked out in this order; each is a list by
// micro-batch, chunk or visit that the makers of instructions only look up.
#include "plan/make/work.h"

#include <algorithm>
#include <set>

#include "config/job_parts.h"

namespace tutti {

namespace {

constexpr size_t kNone = SIZE_MAX;

/// Places that are taken and given back: the lowest free one is taken, or a new one.
class Slots {
 public:
  int take() {
    size_t slot = 0;
    while (slot < taken_.size() && taken_[slot]) ++slot;
    if (slot == taken_.size()) taken_.push_back(true);
    taken_[slot] = true;
    return static_cast<int>(slot);
  }
  void give(int slot) { taken_[slot] = false; }

 private:
  std::vector<bool> taken_;
};

LayerVisit::Kind kind_of(CellKind kind) {
  switch (kind) {
    case CellKind::kForward:
      return LayerVisit::Kind::kForward;
    case CellKind::kBackward:
      return LayerVisit::Kind::kBoth;
    case CellKind::kInput:
      return LayerVisit::Kind::kInput;
    default:
      return LayerVisit::Kind::kWeight;
  }
}

}  // namespace

MeshWork::MeshWork(const MeshHomes& homes)
    : homes(homes),
      sums(homes.options.sums()),
      rounds(sum_rounds(sums)),
      sequence(homes.options.forward_only ? std::vector<MicroBatch>{{0, 0}}
                                          : sequence_of(sums, homes.at.data)),
      kept(homes.options.zero < 2 || !passes_through(sums)),
      split(splits_backward(schedule_of(homes.options))),
      comes_back(homes.options.mesh.pipeline > 1 &&
                 part_named<PipelinePart>(schedule_of(homes.options)).returns) {
  make_routes();
  const std::vector<Cell>& cells = homes.places.cells[homes.at.pipeline];
  find_slots(cells);
  make_visits(cells);
  if (homes.brought()) make_uses();
}

/// Folds work like a binary counter: a finished lane takes a new level, and every subtree that it
/// completes adds two levels to one. What is left at the end of a round are the partials.
void MeshWork::make_routes() {
  for (const Round& round : rounds)
    contributed_.push_back(static_cast<int>(
        std::count_if(round.contributions.begin(), round.contributions.end(),
                      [&](const Contribution& c) { return c.data_rank == homes.at.data; })));

  // Evaluation has no gradients; its one micro-batch has an empty route.
  if (homes.options.forward_only) return routes_.push_back({});
  int round = 0;
  for (const auto& part : rounds_in_step(sums, homes.at.data)) {
    // Idle turns come first (rounds_in_step). They write nothing, but the last one ends the round
    // if the rank has no lane in it.
    int held = 0;
    size_t i = 0;
    for (; i < part.size() && part[i].idle(); ++i)
      routes_.push_back({-1, {}, round, i + 1 == part.size()});

    // The micro-batches of a lane come one after the other.
    while (i < part.size()) {
      size_t end = i;
      while (end < part.size() && part[end].lane == part[i].lane) ++end;
      add_routes({part.begin() + static_cast<std::ptrdiff_t>(i),
                  part.begin() + static_cast<std::ptrdiff_t>(end)},
                 end == part.size(), round, held);
      i = end;
    }

    partials_ = std::max(partials_, held);
    ++round;
  }
}

/// Routes of a lane's micro-batches in a round: the micro-batches are added up, then the lanes as
/// the tree says. `held`: levels in use, this lane's included afterwards.
void MeshWork::add_routes(const std::vector<MicroBatch>& lane, bool ends_round, int round,
                          int& held) {
  const int number = lane[0].lane, lanes = sums.batch.lanes;
  const size_t additions =
      sums.owner
          ? 0
          : sums_after_lane(number, lanes_of(homes.at.data, sums.ranks, lanes), lanes).size();
  const bool away = lane.size() == 1 && additions > 0;  // it is added at once, so it needs no level

  // The first micro-batch is written where the lane's sum will be; the others go through scratch.
  for (size_t m = 0; m < lane.size(); ++m) {
    const bool last = m + 1 == lane.size();
    MeshRoute route;
    route.round = round;
    route.level = m > 0 || away ? -1 : held;
    route.last = last && ends_round;

    // After the lane's last micro-batch the tree's additions follow: its level to the one below,
    // that one to the next.
    if (m > 0) route.folds.emplace_back(held, -1);
    for (size_t k = 0; last && k < additions; ++k) {
      const int from = held - static_cast<int>(k);
      route.folds.emplace_back(from - 1, k == 0 && away ? -1 : from);
    }
    routes_.push_back(std::move(route));
  }

  held += 1 - static_cast<int>(additions);
}

/// Cells are gone through in the order in which they run: a slot is taken at forward and given back
/// when backward is over, so slots are as many as micro-batches are ever in flight.
void MeshWork::find_slots(const std::vector<Cell>& cells) {
  const size_t chunks = homes.places.chunks.size(), micros = sequence.size();
  std::vector<Slots> flying(chunks), parts(chunks);
  Slots data;
  slot_.assign(chunks, std::vector<int>(micros, 0));
  part_slot_ = slot_;
  data_slot_.assign(micros, -1);

  // A micro-batch's data stays until the last chunk of the stage that reads it is done with it.
  std::vector<int> data_users(micros, 0);
  for (const Cell& cell : cells)
    if (cell.kind == CellKind::kForward && reads_data(cell.chunk)) ++data_users[cell.micro];
  for (const Cell& cell : cells) {
    int &slot = slot_[cell.chunk][cell.micro], &part = part_slot_[cell.chunk][cell.micro];
    if (cell.kind == CellKind::kForward) {
      slot = flying[cell.chunk].take();
      if (reads_data(cell.chunk) && data_slot_[cell.micro] < 0)
        data_slot_[cell.micro] = data.take();
      continue;
    }

    // Between its two parts, backward has a place of its own for what it computed again.
    if (cell.kind == CellKind::kInput) {
      part = parts[cell.chunk].take();
      continue;
    }
    if (cell.kind == CellKind::kWeight) parts[cell.chunk].give(part);
    flying[cell.chunk].give(slot);
    if (reads_data(cell.chunk) && --data_users[cell.micro] == 0) data.give(data_slot_[cell.micro]);
  }
}

bool MeshWork::lends_data() const {
  return !homes.options.device &&
         std::all_of(data_slot_.begin(), data_slot_.end(), [](int slot) { return slot <= 0; });
}

bool MeshWork::reads_data(int chunk) const {
  const Range layers = homes.places.chunks[chunk];
  for (int64_t layer = layers.begin; layer < layers.end; ++layer)
    for (const SegmentShape& segment : homes.segments(static_cast<int>(layer)))
      for (const InputShape& in : segment.inputs)
        if (in.data) return true;
  return false;
}

/// Forward goes through a chunk's layers from first to last, backward from last to first.
void MeshWork::make_visits(const std::vector<Cell>& cells) {
  for (const Cell& cell : cells) {
    const Range layers = homes.places.chunks[cell.chunk];
    const bool forward = cell.kind == CellKind::kForward;
    for (int64_t i = 0; i < layers.size(); ++i) {
      const int64_t layer = forward ? layers.begin + i : layers.end - 1 - i;
      visits_.push_back({cell.chunk, static_cast<int>(layer), cell.micro, kind_of(cell.kind), {}});
    }
  }
}

LayerVisit MeshWork::further(const LayerVisit& visit, int layers) const {
  LayerVisit other = visit;
  other.layer += layers;
  other.chunk = homes.places.chunk_of_layer[other.layer];
  return other;
}

/// The units whose values a visit reads: its blocks' own, and those whose parameters they share if
/// these are at home here.
std::vector<int> MeshWork::units_of(const LayerVisit& visit) const {
  std::set<int> units;
  if (visit.kind == LayerVisit::Kind::kWeight) return {};
  for (int64_t c = homes.columns.begin; c < homes.columns.end; ++c) {
    const int block = homes.model.block_at(visit.layer, static_cast<int>(c));
    if (homes.model.blocks[block].unit_size > 0) units.insert(block);
    for (int owner : homes.owners_of(block))
      if (homes.is_home(owner)) units.insert(owner);
  }
  return {units.begin(), units.end()};
}

/// Which units are brought into memory when. A visit needs all its units at once, so there are
/// slots for the widest visit and for `depth` units ahead of it.
void MeshWork::make_uses() {
  size_t widest = 1;
  for (const LayerVisit& visit : visits_) widest = std::max(widest, units_of(visit).size());
  use_slots_ = static_cast<size_t>(homes.options.depth) + widest;
  for (size_t p = 0; p < visits_.size(); ++p) {
    const std::vector<int> units = units_of(visits_[p]);

    // What is still there may be used again, unless what this visit brings anew takes its slot.
    // How much is brought anew depends on that in turn: `fresh` is the least number with which
    // it works out.
    std::vector<size_t> found;
    for (size_t fresh = 0;; ++fresh) {
      found.clear();
      for (int unit : units) found.push_back(still_there(unit, fresh));
      if (static_cast<size_t>(std::count(found.begin(), found.end(), kNone)) <= fresh) break;
    }

    // The rest is brought anew; every use ends with its last visit.
    for (size_t k = 0; k < units.size(); ++k) {
      if (found[k] == kNone) {
        found[k] = uses_.size();
        uses_.push_back({units[k], p, p});
      }
      uses_[found[k]].last = p;
      uses_[found[k]].idle &= idle(visits_[p]);
      visits_[p].uses.push_back(static_cast<int>(found[k]));
    }
  }
}

/// The use of a unit whose slot will not have been taken when `fresh` further uses have come;
/// kNone: there is none.
size_t MeshWork::still_there(int unit, size_t fresh) const {
  const size_t end = uses_.size() + fresh, oldest = end > use_slots_ ? end - use_slots_ : 0;
  for (size_t u = uses_.size(); u-- > oldest;)
    if (uses_[u].unit == unit) return u;
  return kNone;
}

bool MeshWork::recomputed(int layer, const SegmentShape& segment) const {
  return tutti::recomputed(homes.model, homes.options, layer, segment);
}

bool MeshWork::recomputed_whole(int layer) const {
  return homes.options.recompute == Recompute::kFull && layer > 0 &&
         layer + 1 < homes.model.layers();
}

Instruction MeshWork::instruction(Op op, const LayerVisit& visit, int block, int segment) const {
  Instruction i;
  i.op = op;
  i.block = block;
  i.segment = segment;
  i.lane = sequence[visit.micro].lane;
  i.micro = sequence[visit.micro].micro;
  return i;
}

}  // namespace tutti
