// Runs the programs of all ranks of a mesh in a random interleaving, on hashes (hashed_memory.h).
// Knows the plan and the model alone: nothing of the checker, nor of the options that the plan was
// made from.
//
//   phases   Reduce: my terms are ready; mine is added up; all have taken mine. Gather: ready;
//            copied. Acquire: all who borrowed it in the step before have released it. Others that
//            meet: entered; done. Sends wait for their receives, or (buffered) not
//   steps    ranks may be a step apart, as in a real run
#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "unit/plan/mesh_moves.h"
#include "unit/plan/mesh_segments.h"

namespace tutti::test {

class MeshRunner {
 public:
  /// Both must outlive it.
  MeshRunner(const Plan& plan, const ModelShape& model, uint64_t seed)
      : plan_(plan),
        memory_(plan, model, seed),
        segments_(memory_),
        moves_(memory_),
        buffered_(seed % 2 == 1),
        ranks_(plan.programs.size()) {
    for (const Program& program : plan.programs) begin_step(program.rank);
    find_borrowers();
  }

  /// What went wrong; empty: it ran to the end.
  std::string run(int steps) {
    steps_ = steps;
    for (;;) {
      std::vector<std::pair<int, int>> enabled;
      bool finished = true;
      for (int r = 0; r < memory_.ranks(); ++r) {
        if (ranks_[r].step >= steps) continue;
        finished = false;
        for (int q = 0; q < static_cast<int>(ranks_[r].at.size()); ++q)
          if (can_go_on(r, q)) enabled.emplace_back(r, q);
      }
      if (finished) return "";
      if (enabled.empty()) return "deadlock";
      // Some ranks and queues run far ahead of others for a while.
      if (memory_.random() % 64 == 0) favourite_ = memory_.random();
      const auto key = [&](const auto& p) { return hash_of(favourite_, p.first, p.second); };
      std::sort(enabled.begin(), enabled.end(),
                [&](const auto& a, const auto& b) { return key(a) < key(b); });
      const auto [r, q] =
          enabled[memory_.random() % 8 == 0 ? memory_.random() % enabled.size() : 0];
      go_on(r, q);
    }
  }

  /// `problem` names the first place where ranks differ.
  MeshValues state(std::string& problem) const { return memory_.state(problem); }

 private:
  enum class Mark { kReady, kTaken, kOffered, kEntered, kReleased };
  struct Rank {
    int step = 0;
    std::vector<size_t> at;  // by queue
    std::vector<int> phase;
    std::set<int> events;
  };

  void begin_step(int r) {
    Rank& rank = ranks_[r];
    rank.at.assign(plan_.programs[r].queues.size(), 0);
    rank.phase.assign(plan_.programs[r].queues.size(), 0);
    rank.events.clear();
  }
  /// Whoever's Updates read a rank's memory, by rank and unit.
  void find_borrowers() {
    for (const Program& program : plan_.programs)
      for (const Queue& queue : program.queues)
        for (const Instruction& i : queue.instructions)
          for (const Operand& operand : i.operands)
            if (operand.rank >= 0) borrowers_[{operand.rank, operand.unit}].insert(program.rank);
  }
  /// Whether all who borrowed of a rank's parcel in the step before have released it.
  bool is_released(int rank, int parcel) const {
    return std::all_of(
        plan_.parcels[parcel].begin(), plan_.parcels[parcel].end(), [&](const UnitRange& part) {
          const auto it = borrowers_.find({rank, part.unit});
          return it == borrowers_.end() ||
                 all_marked(Mark::kReleased, parcel, ranks_[rank].step - 1, it->second);
        });
  }

  const Instruction* front(int r, int q) const {
    const auto& list = plan_.programs[r].queues[q].instructions;
    return ranks_[r].at[q] < list.size() ? &list[ranks_[r].at[q]] : nullptr;
  }
  template <class Ranks>
  bool all_marked(Mark what, uint64_t number, int step, const Ranks& ranks) const {
    return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
      return marks_.contains({what, number, step, rank});
    });
  }
  void mark(Mark what, uint64_t number, int rank) {
    marks_.insert({what, number, ranks_[rank].step, rank});
  }
  /// What a rank offers of a parcel's parameters stays there until their Update: all Gathers before
  /// it may share a mark.
  uint64_t offer_of(const Instruction& i) const {
    const CopyTransfer& copies = plan_.copies[i.transfer];
    return static_cast<uint64_t>(i.parcel) * 4 + (copies.updated ? 1 : 0) +
           (copies.gradients ? 2 : 0);
  }

  bool can_go_on(int r, int q) const {
    const Instruction* i = front(r, q);
    if (i == nullptr) return false;
    const int phase = ranks_[r].phase[q], step = ranks_[r].step;
    if (phase == 0)
      return std::all_of(i->waits.begin(), i->waits.end(),
                         [&](int e) { return ranks_[r].events.contains(e); });
    switch (i->op) {
      case Op::kReduce:
        return phase == 1 ? all_marked(Mark::kReady, i->id, step, moves_.contributors(*i))
                          : all_marked(Mark::kTaken, i->id, step, moves_.owners(*i));
      case Op::kGather:
        return all_marked(Mark::kOffered, offer_of(*i), step, moves_.sources(r, *i));
      case Op::kAcquire:
        return step == 0 || is_released(r, i->parcel);
      case Op::kSend:
        return buffered_ || all_marked(Mark::kEntered, i->id, step, std::vector{i->peer});
      case Op::kRecv:
        return all_marked(Mark::kEntered, i->id, step, std::vector{i->peer});
      default:
        return all_marked(Mark::kEntered, i->id, step, members_of(plan_, *i));
    }
  }

  void go_on(int r, int q) {
    Rank& rank = ranks_[r];
    const Instruction& i = *front(r, q);
    if (!act(r, i, rank.phase[q])) {
      ++rank.phase[q];
      return;
    }
    rank.phase[q] = 0;
    if (i.signal >= 0) rank.events.insert(i.signal);
    ++rank.at[q];
    for (size_t k = 0; k < rank.at.size(); ++k)
      if (front(r, static_cast<int>(k)) != nullptr) return;
    if (++rank.step < steps_) begin_step(r);
  }

  /// Whether the instruction is over.
  bool act(int r, const Instruction& i, int phase) {
    switch (i.op) {
      case Op::kLoad:
        return segments_.load(r, i, ranks_[r].step), true;
      case Op::kForward:
        return segments_.forward(r, i), true;
      case Op::kBackward:
        return segments_.backward(r, i), true;
      case Op::kFold:
        return segments_.fold(r, i), true;
      case Op::kNorm:
        return segments_.norm(r, i), true;
      case Op::kUpdate:
        return segments_.update(r, i), true;
      case Op::kFetch:
      case Op::kEvict:
        return segments_.move(r, i), true;
      case Op::kRelease:
        return mark(Mark::kReleased, i.parcel, r), true;
      default:
        return meet(r, i, phase);
    }
  }
  bool meet(int r, const Instruction& i, int phase) {
    const int step = ranks_[r].step;
    if (phase == 0) enter(r, i);
    if (phase == 0) return false;
    switch (i.op) {
      case Op::kReduce:
        if (phase == 2) return moves_.keep(r, i), true;
        moves_.take(r, i);
        mark(Mark::kTaken, i.id, r);
        return false;
      case Op::kGather:
        return moves_.gather(r, i), true;
      case Op::kAcquire:
        for (const Operand* lent : operands_of(i, OperandRole::kLent))
          memory_.spoil(r, lent->buffer);
        return true;
      case Op::kVote:
        return memory_.fill(r, buffer_of(i, OperandRole::kVerdict), kCellBytes, verdicts_[step]),
               true;
      case Op::kRecv:
        return moves_.receive(r, i, step), true;
      case Op::kExchange:
        return moves_.exchange(r, i, step), true;
      default:
        return true;
    }
  }
  void enter(int r, const Instruction& i) {
    if (i.op == Op::kSend) moves_.send(r, i, ranks_[r].step);
    if (i.op == Op::kExchange) moves_.bring(r, i, ranks_[r].step);
    if (i.op == Op::kVote) {
      for (const Operand* loss : operands_of(i, OperandRole::kLoss))
        verdicts_[ranks_[r].step] += 3 * memory_.at(r, loss->buffer).at(0);
      for (const Operand* squares : operands_of(i, OperandRole::kSquares))
        verdicts_[ranks_[r].step] += memory_.at(r, squares->buffer).at(0);
      for (const Operand& number : i.operands)
        if (number.role != OperandRole::kVerdict) memory_.at(r, number.buffer).at(0) = 0;
    }
    if (i.op == Op::kReduce) return mark(Mark::kReady, i.id, r);
    if (i.op == Op::kGather) return mark(Mark::kOffered, offer_of(i), r);
    mark(Mark::kEntered, i.id, r);
  }

  const Plan& plan_;
  ProgramMemory memory_;
  MeshSegments segments_;
  MeshMoves moves_;
  const bool buffered_;
  uint64_t favourite_ = 0;
  int steps_ = 0;
  std::vector<Rank> ranks_;
  std::set<std::tuple<Mark, uint64_t, int, int>> marks_;    // (what, number, step, rank)
  std::map<std::pair<int, int>, std::set<int>> borrowers_;  // by rank and unit
  std::map<int, uint64_t> verdicts_;                        // by step
};

}  // namespace tutti::test
