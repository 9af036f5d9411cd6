// Transfers in the terms of those who carry them out: bytes of windows and buffers
// instead of units.
//   gradient space  the floats of a unit, then (after its end) those of further users of its shared
//                   parameters; buffers of gradients hold ranges of it
//   source          one of the gradients that are added to a unit's: its own block's, or a further
//                   user's
//   wanted          the range of gradient space in which a contribution of a source is
#include "plan/make/make_transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "plan/ir/tags.h"

namespace tutti {

namespace {

constexpr int64_t kFloat = sizeof(float);

/// Floats of the unit's gradient space that a buffer holds.
Range held(const Buffer& buffer) {
  return buffer.range.empty() ? Range{0, buffer.bytes / kFloat} : buffer.range;
}

bool contains(Range outer, Range inner) {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

/// Bytes from the window's start to the float `at` of the unit.
int64_t window_place(const Buffer& buffer, int64_t at) {
  return buffer.window_offset + (at - held(buffer).begin) * kFloat;
}

[[noreturn]] void refuse(const Instruction& i, int rank, const std::string& what) {
  throw Error(fmt::format("rank {} {}: {}", rank, to_string(i), what));
}

class Transfers {
 public:
  Transfers(Plan& plan, const ModelShape& model, const MeshOptions& options,
            const MeshPlaces& places)
      : plan_(plan),
        model_(model),
        options_(options),
        places_(places),
        rounds_(sum_rounds(options.sums())),
        by_id_(plan.programs.size()) {}

  void add() {
    // Who meets whom is found by the id alone, on whatever queue the instruction is.
    for (size_t r = 0; r < plan_.programs.size(); ++r)
      for (Queue& queue : plan_.programs[r].queues)
        for (Instruction& i : queue.instructions)
          if (i.op == Op::kReduce || i.op == Op::kGather) by_id_[r].emplace(i.id, &i);

    // Transfers are numbered in the order of the programs, so that every rank makes the same plan.
    for (Program& program : plan_.programs)
      for (Queue& queue : program.queues)
        for (Instruction& i : queue.instructions) {
          if (i.op == Op::kReduce)
            i.transfer = number(i, [&] { return place(plan_.sums, sum(i)); });
          if (i.op == Op::kGather)
            i.transfer = number(i, [&] { return place(plan_.copies, copy(i)); });
        }
  }

 private:
  /// All who meet share a transfer: the first one that is asked makes it.
  template <class F>
  int number(const Instruction& i, F&& make) {
    const auto [it, fresh] = numbers_.try_emplace(i.id, -1);
    if (fresh) it->second = make();
    return it->second;
  }
  /// Gathers of one unit into the same memory (for forward and for backward, say) are one transfer.
  template <class T>
  int place(std::vector<T>& list, T transfer) {
    if constexpr (std::is_same_v<T, CopyTransfer>) {
      auto& alike = copies_of_group_[transfer.ranks];
      for (int other : alike)
        if (list[static_cast<size_t>(other)] == transfer) return other;
      alike.push_back(static_cast<int>(list.size()));
    }
    list.push_back(std::move(transfer));
    return static_cast<int>(list.size()) - 1;
  }

  const Instruction* find(int rank, uint32_t id) const {
    const auto it = by_id_[static_cast<size_t>(rank)].find(id);
    return it == by_id_[static_cast<size_t>(rank)].end() ? nullptr : it->second;
  }
  const Buffer& buffer(int rank, int b) const { return plan_.programs[rank].buffers[b]; }

  SumTransfer sum(const Instruction& reduce) const;
  Round round_of(const Instruction& reduce, bool by_hosts) const;
  UnitSum unit_sum(const Instruction& reduce, const SumTransfer& transfer, const Round& round,
                   int unit) const;
  SumSource source(const Instruction& reduce, const Round& round, int unit, Range to, int64_t from,
                   int block) const;
  CopyTransfer copy(const Instruction& gather) const;
  void copy_into(CopyTransfer& transfer, const Instruction& own, int rank,
                 const Operand& whole) const;

  Plan& plan_;
  const ModelShape& model_;
  const MeshOptions& options_;
  const MeshPlaces& places_;
  const std::vector<Round> rounds_;
  std::vector<std::unordered_map<uint32_t, Instruction*>> by_id_;  // by rank
  std::unordered_map<uint32_t, int> numbers_;
  std::map<std::vector<int>, std::vector<int>> copies_of_group_;
};

/// The additions of a Reduce: a round of the whole data axis or, for sums by hosts, of a host or a
/// position.
Round Transfers::round_of(const Instruction& reduce, bool by_hosts) const {
  if (!by_hosts) return rounds_[reduce.round];
  const int data = options_.mesh.at(members_of(plan_, reduce).front()).data,
            together = places_.host_ranks;
  return reduce.round == 0 ? round_inside(options_.sums(), together, data / together)
                           : round_between(options_.sums(), together, data % together);
}

/// One source of a unit's sum: what the data ranks of a block's home have for the floats `to`,
/// which begins at float `from` of gradient space.
SumSource Transfers::source(const Instruction& reduce, const Round& round, int unit, Range to,
                            int64_t from, int block) const {
  SumSource source{to, {}};
  Coordinates home = plan_.homes[block];
  const Range wanted{from, from + to.size()};
  for (const Contribution& contribution : round.contributions) {
    home.data = contribution.data_rank;
    const int rank = options_.mesh.rank(home);
    const Instruction* own = find(rank, reduce.id);
    if (own == nullptr) refuse(reduce, rank, "takes no part");

    // A rank lists its partials in order, so the n-th term that holds the range is partial n.
    int left = contribution.partial;
    const Operand* found = nullptr;
    for (const Operand* term : operands_of(*own, OperandRole::kTerm, unit))
      if (contains(term->range, wanted) && left-- == 0) found = term;

    // These would be the generator's faults; the program says so rather than read something else.
    if (found == nullptr)
      refuse(reduce, rank,
             fmt::format("partial {} of floats [{}, {}) is in no buffer that it reads",
                         contribution.partial, wanted.begin, wanted.end));
    if (!buffer(rank, found->buffer).window)
      refuse(reduce, rank,
             fmt::format("'{}' is not in the window", buffer(rank, found->buffer).name));

    source.terms.push_back({rank, window_place(buffer(rank, found->buffer), from)});
  }
  return source;
}

/// A unit's part of a sum: every member's slice, then the unit's own gradient, then further users
/// in the order of parameters and users.
UnitSum Transfers::unit_sum(const Instruction& reduce, const SumTransfer& transfer,
                            const Round& round, int unit) const {
  UnitSum sum{unit, {}, {}};
  for (int rank : transfer.ranks) {
    const bool of_host = transfer.by_hosts && !transfer.last();
    sum.slices.push_back(
        of_host ? places_.host_slice(unit, options_.mesh.at(rank).data % places_.host_ranks)
                : range_of(plan_.ownership[unit].sums, rank));
  }

  // The checker expects the sources in this order, too (plan/check/unit_symbols.cc).
  const BlockShape& block = model_.blocks[unit];
  sum.sources.push_back(source(reduce, round, unit, {0, block.unit_size}, 0, unit));
  for (size_t p = 0; p < block.parameters.size(); ++p) {
    const ParameterShape& parameter = block.parameters[p];
    for (size_t e = 0; e < parameter.extra_gradients.size(); ++e) {
      const Share share{unit, static_cast<int>(p), static_cast<int>(e)};
      const auto uses = [&](const BlockShape& user) {
        return std::find(user.shares.begin(), user.shares.end(), share) != user.shares.end();
      };

      // The block that uses the parameter as its e-th further user says at whose home
      // the gradient is.
      const auto user = std::find_if(model_.blocks.begin(), model_.blocks.end(), uses);
      if (user == model_.blocks.end())
        throw Error(fmt::format("nobody uses '{}' as user {}", parameter.name, e));
      sum.sources.push_back(
          source(reduce, round, unit, {parameter.offset, parameter.offset + parameter.size},
                 parameter.extra_gradients[e], static_cast<int>(user - model_.blocks.begin())));
    }
  }
  return sum;
}

SumTransfer Transfers::sum(const Instruction& reduce) const {
  const Parcel& parcel = plan_.parcels[reduce.parcel];
  SumTransfer transfer;
  transfer.ranks = members_of(plan_, reduce);
  transfer.round = reduce.round;
  transfer.by_hosts = places_.by_hosts(parcel.front().unit);
  transfer.rounds = transfer.by_hosts ? 2 : static_cast<int>(rounds_.size());
  transfer.ordered = !options_.ring;

  // Terms of a sum are numbered by contribution; all units of a parcel have the same.
  const Round round = round_of(reduce, transfer.by_hosts);
  transfer.levels = transfer.by_hosts ? static_cast<int>(round.sums.size()) : stack_levels(rounds_);
  transfer.sums = round.sums;
  for (const UnitRange& part : parcel)
    transfer.units.push_back(unit_sum(reduce, transfer, round, part.unit));

  if (spread_of(options_, places_, parcel.front().unit) == Spread::kReturned)
    transfer.returned = Return::kBlocks;
  return transfer;
}

/// Adds what a rank takes into one of the buffers that it writes: each piece from those ranks of
/// its replica that own it.
void Transfers::copy_into(CopyTransfer& transfer, const Instruction& own, int rank,
                          const Operand& whole) const {
  const Mesh& mesh = options_.mesh;
  const int unit = whole.unit, shards = static_cast<int>(places_.slices[unit].size()),
            first = mesh.at(rank).data / shards * shards;
  const Buffer& target = buffer(rank, whole.buffer);

  // What a use brings has a buffer for units of all sizes, so the unit says how far it is filled.
  std::vector<PlacedRange> pieces = placed_in(target, model_.blocks[unit].unit_size);
  for (const auto& [range, place] : pieces) {
    for (int shard = 0; shard < shards; ++shard) {
      Coordinates home = plan_.homes[unit];
      home.data = first + shard;
      const int from = mesh.rank(home);
      const Range part = overlap(range, range_of(plan_.ownership[unit].sums, from));
      if (part.empty()) continue;
      const Instruction* offer = find(from, own.id);
      const auto parts = offer == nullptr ? std::vector<const Operand*>{}
                                          : operands_of(*offer, OperandRole::kPart, unit);
      if (parts.empty()) refuse(own, from, "reads no slice");
      // Its own slice is there already.
      if (from == rank && parts[0]->buffer == whole.buffer) continue;
      const Buffer& slice = buffer(from, parts[0]->buffer);
      if (!slice.window) refuse(own, from, fmt::format("'{}' is not in the window", slice.name));
      if (!contains(held(slice), part))
        refuse(own, from,
               fmt::format("'{}' does not hold floats [{}, {})", slice.name, part.begin, part.end));
      transfer.copies.push_back({from, rank, window_place(slice, part.begin), whole.buffer,
                                 (place + part.begin - range.begin - held(target).begin) * kFloat,
                                 part.size() * kFloat});
    }
  }
}

/// All copies of a Gather. Its id says whether it comes after the Updates; what its buffers hold
/// says whether it moves gradients.
CopyTransfer Transfers::copy(const Instruction& gather) const {
  CopyTransfer transfer;
  transfer.ranks = members_of(plan_, gather);
  for (int rank : transfer.ranks) {
    const Instruction* own = find(rank, gather.id);
    if (own == nullptr) refuse(gather, rank, "takes no part");
    transfer.updated = kRefreshIds.has(own->id);
    for (const Operand* whole : operands_of(*own, OperandRole::kWhole)) {
      transfer.gradients =
          transfer.gradients || buffer(rank, whole->buffer).kind == BufferKind::kGradient;
      copy_into(transfer, *own, rank, *whole);
    }
  }
  return transfer;
}

}  // namespace

void add_transfers(Plan& plan, const ModelShape& model, const MeshOptions& options,
                   const MeshPlaces& places) {
  Transfers(plan, model, options, places).add();
}

}  // namespace tutti
