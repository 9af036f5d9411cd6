// A transfer is data that engines follow, while generator and checker order instructions by their
// operands. So every byte that a transfer touches has to be covered by an operand of the rank whose
// memory it is.
#include "plan/check/check_transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace tutti {

namespace {

constexpr int64_t kFloat = sizeof(float);

class TransferCheck {
 public:
  TransferCheck(const Plan& plan, const ModelShape& model, const Ordering& ordering)
      : plan_(plan), model_(model), ordering_(ordering) {}

  std::vector<std::string> check() {
    for (const auto& places : ordering_.sequence()) {
      const Instruction& first = at(plan_, places[0]);
      if (first.op != Op::kReduce && first.op != Op::kGather) continue;

      // Those who meet have to mean one transfer; then it is looked at once for all of them.
      std::vector<int> ranks;
      bool same = true;
      for (const Place& place : places) {
        ranks.push_back(place.rank);
        same = same && at(plan_, place).transfer == first.transfer &&
               at(plan_, place).parcel == first.parcel;
      }
      if (!same) {
        fault(places[0], "means another transfer than those it meets");
      } else if (first.op == Op::kReduce) {
        check_sum(places, ranks);
      } else {
        check_copies(places, ranks);
      }
    }

    // A sum that is not finished would be read as if it were.
    for (const auto& [who, rounds] : rounds_)
      if (rounds.done != rounds.all)
        faults_.push_back(fmt::format("rank {}: the sum of parcel {} has {} rounds of {}",
                                      who.first, who.second, rounds.done, rounds.all));
    return std::move(faults_);
  }

 private:
  void fault(Place place, const std::string& what) {
    faults_.push_back(name_of(plan_, place) + ": " + what);
  }

  void check_sum(const std::vector<Place>& places, const std::vector<int>& ranks) {
    const SumTransfer& sum = plan_.sums[at(plan_, places[0]).transfer];
    const Parcel& parcel = plan_.parcels[at(plan_, places[0]).parcel];

    // Who takes part, and which units: as the instructions say.
    std::vector<int> units, summed;
    for (const UnitRange& part : parcel) units.push_back(part.unit);
    for (const UnitSum& unit : sum.units) summed.push_back(unit.unit);
    if (sum.ranks != ranks || units != summed)
      return fault(places[0], "is not the sum of its ranks and its parcel");

    for (const Place& place : places) check_round(place, sum);

    // A sum by hosts has two rounds, and the second leaves one sum.
    if (sum.by_hosts && (sum.rounds != 2 || (sum.last() && sum.levels != 1)))
      fault(places[0], "is a sum by hosts of other rounds");

    // For every unit: a slice for each member, sources with the same terms, and terms that the
    // giver's Reduce reads.
    for (const UnitSum& unit : sum.units) {
      if (unit.slices.size() != ranks.size() || unit.sources.empty())
        return fault(places[0], "does not say what its ranks make of a unit");
      for (size_t m = 0; m < ranks.size(); ++m) check_slice(places[m], sum, unit, unit.slices[m]);
      for (const SumSource& source : unit.sources) {
        if (source.terms.size() != sum.units[0].sources[0].terms.size())
          return fault(places[0], fmt::format("unit {} has sources of other terms", unit.unit));
        for (const SumSource::Term& term : source.terms) {
          const auto member = std::find(ranks.begin(), ranks.end(), term.rank);
          if (member == ranks.end()) return fault(places[0], "reads of a rank that takes no part");
          check_term(places[static_cast<size_t>(member - ranks.begin())], unit, source, term);
        }
      }
    }

    // Additions only name levels and terms that exist.
    for (const LevelSum& level : sum.sums) {
      const auto known = [&](int term) {
        return term < 0 ? -1 - term < sum.levels
                        : term < static_cast<int>(sum.units[0].sources[0].terms.size());
      };
      bool sound = level.level >= 0 && level.level < sum.levels && !level.terms.empty();
      for (int term : level.terms) sound = sound && known(term);
      for (const auto& [into, from] : level.order)
        sound = sound && into != from && std::min(into, from) >= 0 &&
                std::max(into, from) < static_cast<int>(level.terms.size());
      if (!sound) fault(places[0], "adds what is not there");
    }
  }

  /// Rounds of a parcel's sum come one after the other on every rank, from the first to the last.
  void check_round(Place place, const SumTransfer& sum) {
    Rounds& own = rounds_[{place.rank, at(plan_, place).parcel}];
    if (own.done == 0) own.all = sum.rounds;
    if (sum.round != own.done || sum.rounds != own.all)
      fault(place, "is another round than the one that is due");
    ++own.done;
  }
  /// A rank makes what it owns of a unit's sum. The sum of a host is cut otherwise: any part of the
  /// unit will do there, since only the last round counts.
  void check_slice(Place place, const SumTransfer& sum, const UnitSum& unit, Range slice) {
    const Range own = range_of(plan_.ownership[unit.unit].sums, place.rank);
    const bool of_host = sum.by_hosts && !sum.last();
    if (of_host ? slice.begin < 0 || slice.begin > slice.end ||
                      slice.end > model_.blocks[unit.unit].unit_size
                : slice != own && !(slice.empty() && own.empty()))
      fault(place, fmt::format("makes another slice of unit {} than it owns", unit.unit));
  }
  /// What a sum takes from a rank is in one of the terms that the rank's Reduce reads.
  void check_term(Place giver, const UnitSum& unit, const SumSource& source,
                  const SumSource::Term& term) {
    const int b = window_buffer(plan_.programs[term.rank], term.offset);
    bool read = b >= 0 && fits(term.rank, b, term.offset, source.to.size() * kFloat);
    if (read) {
      const Buffer& buffer = plan_.programs[term.rank].buffers[b];

      // The term says bytes of the window; the operands say floats of the unit.
      const int64_t base = buffer.range.empty() ? 0 : buffer.range.begin;
      const int64_t begin = base + (term.offset - buffer.window_offset) / kFloat;
      const auto list = operands_of(at(plan_, giver), OperandRole::kTerm, unit.unit);
      read = std::any_of(list.begin(), list.end(), [&](const Operand* operand) {
        return operand->buffer == b && operand->range.begin <= begin &&
               begin + source.to.size() <= operand->range.end;
      });
    }
    if (!read) fault(giver, fmt::format("does not read what unit {}'s sum takes of it", unit.unit));
  }

  /// Each copy goes from an operand that its giver reads to one that its taker writes,
  /// in whole floats.
  void check_copies(const std::vector<Place>& places, const std::vector<int>& ranks) {
    const CopyTransfer& transfer = plan_.copies[at(plan_, places[0]).transfer];
    if (transfer.ranks != ranks) return fault(places[0], "is not the copies of its ranks");
    for (const CopyTransfer::Copy& copy : transfer.copies) {
      const auto place_of = [&](int rank) {
        const auto found = std::find(ranks.begin(), ranks.end(), rank);
        return found == ranks.end() ? Place{-1, 0, 0} : places[found - ranks.begin()];
      };
      const Place from = place_of(copy.from), to = place_of(copy.to);
      if (from.rank < 0 || to.rank < 0)
        return fault(places[0], "copies of or to a rank that takes no part");
      if (copy.bytes <= 0 || copy.bytes % kFloat != 0 || copy.at % kFloat != 0)
        return fault(to, "is given something else than floats");

      // The giver's side, then the taker's.
      const int source = window_buffer(plan_.programs[copy.from], copy.offset);
      if (source < 0 || !offers(from, OperandRole::kPart, -1, source) ||
          !fits(copy.from, source, copy.offset, copy.bytes))
        fault(from, "does not read what is copied of it");
      const auto& buffers = plan_.programs[copy.to].buffers;
      const bool there = copy.buffer >= 0 && copy.buffer < static_cast<int>(buffers.size());
      if (!there || !offers(to, OperandRole::kWhole, -1, copy.buffer) || copy.at < 0 ||
          copy.at + copy.bytes > buffers[copy.buffer].bytes)
        fault(to, "does not write what is copied to it");
    }
  }

  /// Whether an instruction has a buffer as an operand of a role.
  bool offers(Place place, OperandRole role, int unit, int buffer) const {
    const auto list = operands_of(at(plan_, place), role, unit);
    return std::any_of(list.begin(), list.end(),
                       [&](const Operand* operand) { return operand->buffer == buffer; });
  }

  /// Whether bytes from a place of the window are floats of one buffer.
  bool fits(int rank, int b, int64_t offset, int64_t bytes) const {
    const Buffer& buffer = plan_.programs[rank].buffers[b];
    return offset % kFloat == 0 && offset + bytes <= buffer.window_offset + buffer.bytes;
  }

  struct Rounds {
    int done = 0, all = 0;
  };
  const Plan& plan_;
  const ModelShape& model_;
  const Ordering& ordering_;
  std::map<std::pair<int, int>, Rounds> rounds_;  // by rank and parcel
  std::vector<std::string> faults_;
};

}  // namespace

int window_buffer(const Program& program, int64_t offset) {
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.window && buffer.window_offset <= offset &&
        offset < buffer.window_offset + buffer.bytes)
      return static_cast<int>(b);
  }
  return -1;
}

std::vector<std::string> check_transfers(const Plan& plan, const ModelShape& model,
                                         const Ordering& ordering) {
  return TransferCheck(plan, model, ordering).check();
}

}  // namespace tutti
