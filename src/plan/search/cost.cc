// What each kind of instruction costs, by the sizes of what it works on and the machine's prices
// (plan/search/prices.h).
#include "plan/search/cost.h"

#include <algorithm>
#include <memory>

#include "plan/search/prices.h"

namespace tutti {

namespace {

constexpr double kFloat = sizeof(float);
/// Seconds that the executor itself takes per instruction: its events, the trace.
constexpr double kInstruction = 2e-6;

/// Sizes of whole buffers, which may be larger than what an instruction uses of them.
double bytes_of(const Program& program, const std::vector<int>& buffers) {
  double bytes = 0;
  for (int buffer : buffers)
    if (buffer >= 0)
      bytes += static_cast<double>(program.buffers[static_cast<size_t>(buffer)].bytes);
  return bytes;
}

double bytes_of(const Program& program, const Instruction& i, OperandRole role) {
  double bytes = 0;
  for (const Operand* operand : operands_of(i, role))
    bytes += static_cast<double>(program.buffers[static_cast<size_t>(operand->buffer)].bytes);
  return bytes;
}

/// What each instruction of a plan costs: its segments and units by the model, its meetings by the
/// layout.
class Costs {
 public:
  Costs(const ModelShape& model, const MeshOptions& options, const CostOptions& cost)
      : prices(cost),
        options_(options),
        places_(mesh_places(model, options)),
        columns_(model.columns) {
    for (size_t b = 0; b < model.blocks.size(); ++b) {
      units_.push_back({static_cast<double>(model.blocks[b].unit_size),
                        static_cast<double>(model.blocks[b].gradient_size)});
      segments_.emplace_back();
      for (size_t s = 0; s < model.blocks[b].segments.size(); ++s)
        segments_.back().push_back(
            segment_seconds(model, static_cast<int>(b), static_cast<int>(s), cost));
    }
    const std::vector<Round> rounds = sum_rounds(options.sums());
    for (const Round& round : rounds) {
      std::vector<int> of(static_cast<size_t>(options.mesh.data), 0);
      for (const Contribution& c : round.contributions) ++of[static_cast<size_t>(c.data_rank)];
      contributions_.push_back(std::move(of));
      double touched = 0;  // terms read and sums written
      for (const LevelSum& sum : round.sums) touched += static_cast<double>(sum.terms.size()) + 1;
      touched_.push_back(touched);
    }
  }

  Work of(const Program& program, const Instruction& i) const {
    switch (i.op) {
      case Op::kForward:
      case Op::kBackward:
        return compute(i);
      case Op::kFold:
        return fold(program, i);
      case Op::kLoad:
        return memory(prices.copy(2 * bytes_of(program, i, OperandRole::kData)));
      case Op::kReduce:
        return reduce(program, i);
      case Op::kNorm:
        return memory(prices.copy(units(i.parcel) * kFloat / shards()));
      case Op::kGather:
        return gather(program, i);
      case Op::kVote:
        return memory(prices.meet(options_.mesh.ranks()));
      case Op::kAcquire:
      case Op::kRelease:
        return memory(0);  // flags that are raised long before somebody looks at them
      case Op::kUpdate:
        return update(program, i);
      case Op::kSend:
      case Op::kRecv:
        return hand_over(program, i);
      case Op::kExchange:
        return exchange(program, i);
      case Op::kFetch:
      case Op::kEvict:
        return memory(prices.tier(std::max(bytes_of(program, i, OperandRole::kStored),
                                           bytes_of(program, i, OperandRole::kResident))));
    }
    return {};
  }

  Prices prices;

 private:
  struct Unit {
    double own, gradient;
  };

  Work compute(const Instruction& i) const {
    const SegmentSeconds& s =
        segments_[static_cast<size_t>(i.block)][static_cast<size_t>(i.segment)];
    double seconds = s.forward;
    if (i.op == Op::kBackward)
      seconds = i.part == Part::kInput    ? s.input
                : i.part == Part::kWeight ? s.weight
                                          : s.input + s.weight;
    return {seconds + kInstruction, Resource::kMatmul};
  }
  Work fold(const Program& program, const Instruction& i) const {
    double bytes = 0;
    for (const Add& add : i.adds) bytes += 3.0 * bytes_of(program, {add.from});
    return memory(prices.fold(bytes));
  }
  static Work memory(double seconds) { return {seconds + kInstruction, Resource::kMemory}; }
  double unit(int unit) const { return units_[static_cast<size_t>(unit)].own; }
  double gradient(int unit) const { return units_[static_cast<size_t>(unit)].gradient; }
  double shards() const { return reduce_shards_of(options_); }
  /// Floats of a parcel's units; gradients() has those of their gradients, which further users of
  /// shared parameters make longer.
  double units(int parcel) const {
    double floats = 0;
    for (const UnitRange& part : places_.parcels[static_cast<size_t>(parcel)])
      floats += unit(part.unit);
    return floats;
  }
  double gradients(int parcel) const {
    double floats = 0;
    for (const UnitRange& part : places_.parcels[static_cast<size_t>(parcel)])
      floats += gradient(part.unit);
    return floats;
  }
  /// With ZeRO an Update does one rank's slices alone. What it borrows from other ranks it reads as
  /// it goes, where they left it: this counts as received but adds no seconds.
  Work update(const Program& program, const Instruction& i) const {
    Work work = memory(prices.update(unit(i.block) / (options_.zero > 0 ? shards() : 1),
                                     options_.optimizer_slots));
    double borrowed = 0;
    for (const Operand& operand : i.operands)
      if (operand.rank >= 0) borrowed += static_cast<double>(operand.range.size()) * kFloat;
    const std::vector<int> from = peers(program.rank, Axis::kData, true);
    work.received = borrowed;
    work.link = from.empty() ? 0 : borrowed / static_cast<double>(from.size());
    return work;
  }
  /// The other ranks on the data or the tensor axis. `group`: of the data axis, only those among
  /// which the unit's slices are divided.
  std::vector<int> peers(int rank, Axis axis, bool group) const {
    const Coordinates me = options_.mesh.at(rank);
    const int together = reduce_shards_of(options_);
    std::vector<int> list;
    const int n = axis == Axis::kData ? options_.mesh.data : options_.mesh.tensor;
    for (int k = 0; k < n; ++k) {
      Coordinates other = me;
      (axis == Axis::kData ? other.data : other.tensor) = k;
      if (other == me || (group && me.data / together != k / together)) continue;
      list.push_back(options_.mesh.rank(other));
    }
    return list;
  }

  /// An owner gets its slice of every contribution of the others, and adds the terms up. If the sum
  /// is returned, every owner's finished slice comes back to all others.
  Work reduce(const Program& program, const Instruction& i) const {
    Work work = memory(prices.arrive(program.rank, {}, 0));
    if (buffer_of(i, OperandRole::kSum) < 0) return work;  // it only contributes
    if (places_.by_hosts(places_.parcels[static_cast<size_t>(i.parcel)].front().unit))
      return reduce_by_hosts(program, i);

    const auto round = static_cast<size_t>(std::max(i.round, 0));
    const std::vector<int>& of = contributions_[round];
    const int me = options_.mesh.at(program.rank).data;
    const double slice = gradients(i.parcel) * kFloat / shards();

    // Every contribution of another rank brings one slice; links share them evenly.
    double others = 0;
    for (size_t d = 0; d < of.size(); ++d) others += static_cast<int>(d) == me ? 0 : of[d];
    const std::vector<int> from = peers(program.rank, Axis::kData, false);
    work.link = from.empty() ? 0 : slice * others / static_cast<double>(from.size());
    work.received = slice * others;
    work.seconds +=
        prices.arrive(program.rank, from, work.link) + prices.fold(slice * touched_[round]);

    // What is returned: the finished slice of every other owner.
    const int first = places_.parcels[static_cast<size_t>(i.parcel)].front().unit;
    if (spread_of(options_, places_, first) != Spread::kReturned) return work;
    work.seconds += prices.arrive(program.rank, from, slice);
    work.link += slice;
    work.received += slice * static_cast<double>(from.size());
    return work;
  }

  /// The same in two levels: round 0 inside a host, round 1 among the ranks that have the same
  /// slice on all hosts.
  Work reduce_by_hosts(const Program& program, const Instruction& i) const {
    const int together = places_.host_ranks, me = options_.mesh.at(program.rank).data;
    const bool inside = i.round == 0;

    // Round 0 meets the ranks of one host, round 1 those at one position of all hosts.
    std::vector<int> from;
    for (int peer : peers(program.rank, Axis::kData, false)) {
      const int data = options_.mesh.at(peer).data;
      if (inside ? data / together == me / together : data % together == me % together)
        from.push_back(peer);
    }
    const SumOptions sums = options_.sums();
    const Round round = inside ? round_inside(sums, together, me / together)
                               : round_between(sums, together, me % together);

    // Terms are read, sums are written; what other ranks contribute arrives over a link.
    double others = 0;
    const double touched = static_cast<double>(round.contributions.size() + round.sums.size());
    for (const Contribution& c : round.contributions) others += c.data_rank == me ? 0 : 1;
    const double slice = gradients(i.parcel) * kFloat / (inside ? together : shards());

    Work work = memory(0);
    work.axis = inside ? Axis::kData : Axis::kHosts;
    work.received = slice * others;
    work.link = work.received / static_cast<double>(from.size());
    work.seconds += prices.arrive(program.rank, from, work.link) + prices.fold(slice * touched);
    return work;
  }

  Work gather(const Program& program, const Instruction& i) const {
    // A buffer that uses take in turn is as large as the largest unit, so the parcel's
    // own size counts.
    const double whole =
        std::min(bytes_of(program, i, OperandRole::kWhole), units(i.parcel) * kFloat);
    const bool owns = buffer_of(i, OperandRole::kPart) >= 0;
    const std::vector<int> from = peers(program.rank, Axis::kData, true);
    Work work = memory(prices.copy(2 * whole));
    work.link = whole / shards();
    work.received = whole - (owns ? work.link : 0);
    work.seconds += prices.arrive(program.rank, from, work.link);
    return work;
  }

  /// A message between stages. Both ends take its seconds; only the receiver counts its bytes.
  Work hand_over(const Program& program, const Instruction& i) const {
    const double bytes = bytes_of(program, i, OperandRole::kMessage);
    Work work = memory(prices.message(program.rank, i.peer, bytes));
    work.axis = Axis::kPipeline;
    if (i.op == Op::kRecv) work.received = work.link = bytes;
    return work;
  }

  /// Columns meet: a gather copies what the others have, a scatter adds up the parts of my columns.
  Work exchange(const Program& program, const Instruction& i) const {
    const std::vector<int> from = peers(program.rank, Axis::kTensor, false);
    const double in = bytes_of(program, i.flow.in), out = bytes_of(program, i.flow.out);
    const auto mine = static_cast<double>(std::max<size_t>(i.flow.in.size(), 1));
    Work work;
    if (i.exchange == Exchange::kScatter) {
      // Every column brings a part for each of mine. A peer adds up its own columns first, so that
      // one partial comes from each of them.
      const double part = in / mine / columns_;
      work = memory(prices.fold(part * mine * (columns_ + 1.0)));
      work.link = from.empty() ? 0 : part * mine;
    } else {
      work = memory(prices.copy(2 * out));
      work.link = from.empty() ? 0 : (out - in) / static_cast<double>(from.size());
    }

    work.axis = Axis::kTensor;
    work.received = work.link * static_cast<double>(from.size());
    for (int peer : from) work.seconds += prices.message(program.rank, peer, work.link);
    return work;
  }

  MeshOptions options_;
  MeshPlaces places_;
  int columns_;
  std::vector<Unit> units_;
  std::vector<std::vector<SegmentSeconds>> segments_;  // [block][segment]
  std::vector<std::vector<int>> contributions_;        // [round][data rank]
  std::vector<double> touched_;  // by round: terms read and sums written, in slices
};

}  // namespace

int hosts_in_order(const std::vector<int>& hosts) {
  const auto ranks = static_cast<int>(hosts.size());
  const int count = hosts.empty() ? 1 : hosts.back() + 1;

  // Only a grouping like that of layout.hosts lets sums have two levels.
  for (int rank = 0; rank < ranks; ++rank)
    if (hosts[static_cast<size_t>(rank)] != host_of(rank, ranks, count)) return 1;
  return count;
}

SegmentSeconds segment_seconds(const ModelShape& model, int block, int segment,
                               const CostOptions& options) {
  if (!options.measured.empty())
    return options.measured[static_cast<size_t>(block)][static_cast<size_t>(segment)];

  // A roofline without overlap: FLOPs at one core's rate, plus the traffic of borders and saved
  // values, each written and read once. The weight part writes the gradient and reads about half
  // of the rest.
  const BlockShape& b = model.blocks[static_cast<size_t>(block)];
  const SegmentShape& s = b.segments[static_cast<size_t>(segment)];
  const Calibration& c = options.calibration;
  const double matmul = s.flops / c.matmul.front();
  const double touched = 2.0 * static_cast<double>(s.border_bytes + s.saved_bytes) / c.copy.alone;
  const double gradient =
      kFloat * static_cast<double>(b.unit_size) / static_cast<double>(b.segments.size());
  return {matmul + touched, matmul + touched, matmul + touched / 2 + gradient / c.copy.alone};
}

CostModel mesh_cost(const ModelShape& model, const MeshOptions& options, const CostOptions& cost) {
  auto costs = std::make_shared<const Costs>(model, options, cost);
  CostModel priced{
      [costs](const Program& p, const Instruction& i) { return costs->of(p, i); }, {}, cost.hosts};
  if (!cost.own_processors)
    priced.pace = [costs](Resource resource, int active) {
      return costs->prices.pace(resource, active);
    };
  return priced;
}

double state_bytes(double parameters, int ranks, int zero, const SlotSizes& sizes) {
  // ZeRO-1 slices the optimizer's state, ZeRO-2 the gradients as well, ZeRO-3 the parameters, too.
  const double n = ranks;
  return parameters *
         (sizes.parameter / (zero >= 3 ? n : 1) + sizes.gradient / (zero >= 2 ? n : 1) +
          sizes.optimizer / (zero >= 1 ? n : 1));
}

}  // namespace tutti
