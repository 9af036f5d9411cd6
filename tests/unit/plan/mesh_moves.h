// What goes between the ranks of a mesh, on hashes (hashed_memory.h): sums, copies, messages and
// exchanges. Who waits for whom is said by mesh_runner.h; everything here is one phase of an
// instruction on one rank.
#pragma once

#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "unit/plan/hashed_memory.h"

namespace tutti::test {

/// The memory must outlive it.
class MeshMoves {
 public:
  explicit MeshMoves(ProgramMemory& memory) : memory_(memory), plan_(memory.plan) {
    for (const SumTransfer& sum : plan_.sums) {
      std::set<int> gives, makes;
      for (const UnitSum& unit : sum.units) {
        for (const SumSource& source : unit.sources)
          for (const auto& term : source.terms) gives.insert(term.rank);
        for (size_t m = 0; m < unit.slices.size(); ++m)
          if (!unit.slices[m].empty()) makes.insert(sum.ranks.at(m));
      }
      contributors_.emplace_back(gives.begin(), gives.end());
      owners_.emplace_back(makes.begin(), makes.end());
    }
  }

  /// Of a Reduce: whose terms are read, and who makes slices of the sum.
  const std::vector<int>& contributors(const Instruction& i) const {
    return contributors_[i.transfer];
  }
  const std::vector<int>& owners(const Instruction& i) const { return owners_[i.transfer]; }

  /// An owner reads all terms of its slices and adds them up, for now in memory of its own.
  void take(int rank, const Instruction& i) {
    const SumTransfer& sum = plan_.sums[i.transfer];
    for (const UnitSum& unit : sum.units)
      if (const Range slice = slice_of(sum, unit, rank); !slice.empty())
        take(rank, i, sum, unit, slice);
  }
  /// Then, once nobody reads terms any more, slices come to their places: an owner's to its stack,
  /// those that are returned into every member's first term.
  void keep(int rank, const Instruction& i) {
    const SumTransfer& sum = plan_.sums[i.transfer];
    for (const UnitSum& unit : sum.units) {
      const Range slice = slice_of(sum, unit, rank);
      for (int level = 0; !slice.empty() && level < sum.levels; ++level)
        put(rank, level_buffer(i, unit.unit, level), slice,
            made_.at({rank, i.id, unit.unit})[level]);
      if (sum.returned == Return::kNone) continue;
      const int first = operands_of(i, OperandRole::kTerm, unit.unit).at(0)->buffer;
      for (size_t m = 0; m < sum.ranks.size(); ++m)
        if (sum.ranks[m] != rank && !unit.slices[m].empty())
          put(rank, first, unit.slices[m], made_.at({sum.ranks[m], i.id, unit.unit})[0]);
    }
  }

  /// Of a Gather: whom a rank copies from.
  std::vector<int> sources(int rank, const Instruction& i) const {
    std::vector<int> list;
    for (const auto& copy : plan_.copies[i.transfer].copies)
      if (copy.to == rank) list.push_back(copy.from);
    return list;
  }
  void gather(int rank, const Instruction& i) {
    std::vector<std::pair<uint64_t*, uint64_t>> writes;
    for (const auto& copy : plan_.copies[i.transfer].copies) {
      if (copy.to != rank) continue;
      for (int64_t c = 0; c < cells_in(copy.bytes); ++c)
        writes.emplace_back(&memory_.at(rank, copy.buffer).at(copy.at / kCellBytes + c),
                            memory_.window(copy.from, copy.offset + c * kCellBytes));
    }
    for (const auto& [to, value] : writes) *to = value;
  }

  void send(int rank, const Instruction& i, int step) {
    letters_[{i.id, step}] = memory_.at(rank, buffer_of(i, OperandRole::kMessage));
  }
  void receive(int rank, const Instruction& i, int step) {
    memory_.at(rank, buffer_of(i, OperandRole::kMessage)) = letters_.at({i.id, step});
  }

  /// Partial sums that are brought are used up.
  void bring(int rank, const Instruction& i, int step) {
    for (int b : i.flow.in) brought_[{i.id, step}][rank].push_back(memory_.at(rank, b));
    for (int b : i.flow.in)
      if (i.exchange == Exchange::kScatter) memory_.spoil(rank, b);
  }
  void exchange(int rank, const Instruction& i, int step) {
    std::vector<const Cells*> columns;
    size_t first = 0;  // my first column
    for (const auto& [member, parts] : brought_[{i.id, step}]) {
      if (member < rank) first += parts.size();
      for (const Cells& part : parts) columns.push_back(&part);
    }
    const size_t count = columns.size(), part = exchanged_cells(i) / count;
    if (i.exchange == Exchange::kGather) {
      for (size_t c = 0; c < count * part; ++c)
        memory_.at(rank, i.flow.out[0]).at(c) = columns[c / part]->at(c % part);
      return;
    }
    for (size_t k = 0; k < i.flow.out.size(); ++k)
      for (size_t c = 0; c < part; ++c)
        memory_.at(rank, i.flow.out[k]).at(c) = tree(columns, 0, count, (first + k) * part + c);
  }

 private:
  static Range slice_of(const SumTransfer& sum, const UnitSum& unit, int rank) {
    const auto me = std::find(sum.ranks.begin(), sum.ranks.end(), rank) - sum.ranks.begin();
    return unit.slices.at(static_cast<size_t>(me));
  }
  static int level_buffer(const Instruction& reduce, int unit, int level) {
    return operands_of(reduce, OperandRole::kSum, unit).at(static_cast<size_t>(level))->buffer;
  }
  void put(int rank, int b, Range slice, const Cells& values) {
    const int64_t first = memory_.place_of(rank, b, slice.begin);
    for (size_t c = 0; c < values.size(); ++c) memory_.at(rank, b).at(first + c) = values[c];
  }

  void take(int rank, const Instruction& i, const SumTransfer& sum, const UnitSum& unit,
            Range slice) {
    std::vector<Cells> levels;
    for (int level = 0; level < sum.levels; ++level) {
      const int b = level_buffer(i, unit.unit, level);
      const int64_t first = memory_.place_of(rank, b, slice.begin);
      Cells& own = levels.emplace_back();
      for (int64_t c = 0; c < last_cell(slice.size()); ++c)
        own.push_back(memory_.at(rank, b).at(first + c));
    }
    for (size_t s = 0; s < unit.sources.size(); ++s) {
      const Range to = overlap(slice, unit.sources[s].to);
      for (int64_t c = first_cell(to.begin); c < last_cell(to.end); ++c) {
        const auto place = [&](int level) -> uint64_t& {
          if (s == 0) return levels[level].at(c - first_cell(slice.begin));
          return further_[{rank, unit.unit, level, s, c}];
        };
        add_cell(sum, unit.sources[s], c, place);
        uint64_t& total = levels[0].at(c - first_cell(slice.begin));
        if (sum.last() && s > 0) total = add_hashes(total, place(0));
      }
    }
    made_[{rank, i.id, unit.unit}] = std::move(levels);
  }
  template <class F>
  void add_cell(const SumTransfer& sum, const SumSource& source, int64_t cell, F&& at_level) {
    for (const LevelSum& level : sum.sums) {
      std::vector<uint64_t> terms;
      for (int term : level.terms) {
        if (term < 0) {
          terms.push_back(at_level(-1 - term));
        } else {
          const auto& from = source.terms.at(term);
          terms.push_back(memory_.window(
              from.rank, from.offset + (cell - first_cell(source.to.begin)) * kCellBytes));
        }
      }
      for (const auto& [into, from] : level.order)
        terms.at(into) = add_hashes(terms.at(into), terms.at(from));
      at_level(level.level) = terms.at(0);
    }
  }

  /// Cells of all columns' parts; the models of these tests have one size for all that columns
  /// exchange.
  size_t exchanged_cells(const Instruction& i) const {
    for (const OutputShape& out : memory_.model.blocks[i.block].segments[i.segment].outputs) {
      if (out.exchange == Exchange::kGather) return cells_in(out.read_bytes);
      if (out.exchange == Exchange::kScatter) return cells_in(out.bytes);
    }
    return 0;
  }
  static uint64_t tree(const std::vector<const Cells*>& columns, size_t begin, size_t end,
                       size_t cell) {
    if (end - begin == 1) return columns[begin]->at(cell);
    size_t left = 1;
    while (left * 2 < end - begin) left *= 2;
    return add_hashes(tree(columns, begin, begin + left, cell),
                      tree(columns, begin + left, end, cell));
  }

  ProgramMemory& memory_;
  const Plan& plan_;
  std::vector<std::vector<int>> contributors_, owners_;  // by sum of the plan
  // (rank, id, unit): its slice, by level
  std::map<std::tuple<int, uint32_t, int>, std::vector<Cells>> made_;
  // (rank, unit, level, source, cell)
  std::map<std::tuple<int, int, int, size_t, int64_t>, uint64_t> further_;
  std::map<std::pair<uint32_t, int>, Cells> letters_;  // (id, step)
  std::map<std::pair<uint32_t, int>, std::map<int, std::vector<Cells>>> brought_;
};

}  // namespace tutti::test
