// Since conflicting accesses are ordered (plan/check/races.h), one interleaving stands for all. A
// buffer has one value at a time: either a tensor (FlowValues) or values of a unit (UnitSymbols);
// whoever writes one kind there makes the other forget.
#include "plan/check/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "plan/check/flow.h"
#include "plan/check/unit_symbols.h"

namespace tutti {

namespace {

/// Counts runs of segments: each runs once forward and once back, in one piece or two, on every
/// micro-batch; in evaluation only forward, once per data rank.
class Census {
 public:
  Census(const Plan& plan, const ModelShape& model)
      : model_(model), plan_(plan), forwards_(plan.training ? 1 : plan.mesh.data) {
    for (const BlockShape& block : model.blocks) {
      first_.push_back(segments_);
      segments_ += block.segments.size();
    }
    done_.assign(segments_ * plan.batch.lanes * plan.batch.micro_batches, {});
  }
  void count(Place place, const Instruction& i, PlaceFaults& faults) {
    // A second forward, for backward, makes the same values again.
    if (i.again) return;
    auto& done = done_[number(i.block, i.segment, i.lane, i.micro)];

    // A whole backward counts as both of its parts.
    const bool twice = (i.op == Op::kForward && done[0]++ >= forwards_) ||
                       (i.op == Op::kBackward && i.part != Part::kWeight && done[1]++ > 0) ||
                       (i.op == Op::kBackward && i.part != Part::kInput && done[2]++ > 0);
    if (twice) faults.add(place, "is done a second time");
  }
  void end(std::vector<std::string>& faults) const {
    const Batch batch = plan_.training ? plan_.batch : Batch{1, 1, 1};
    for (int b = 0; b < static_cast<int>(first_.size()); ++b) {
      for (int s = 0; s < static_cast<int>(model_.blocks[b].segments.size()); ++s) {
        for (int lane = 0; lane < batch.lanes; ++lane) {
          for (int micro = 0; micro < batch.micro_batches; ++micro) {
            const auto& done = done_[number(b, s, lane, micro)];
            const bool whole =
                done[0] == forwards_ && (!plan_.training || (done[1] > 0 && done[2] > 0));
            if (!whole)
              faults.push_back(fmt::format("block {}.{} lane {} micro {}: {} is missing", b, s,
                                           lane, micro,
                                           done[0] < forwards_ ? "Forward" : "Backward"));
          }
        }
      }
    }
  }

 private:
  size_t number(int block, int segment, int lane, int micro) const {
    return ((first_[block] + segment) * plan_.batch.lanes + lane) * plan_.batch.micro_batches +
           micro;
  }
  const ModelShape& model_;
  const Plan& plan_;
  const int forwards_;
  std::vector<size_t> first_;
  size_t segments_ = 0;
  std::vector<std::array<int, 3>> done_;  // times of forward, input part, weight part
};

/// Runs the programs on symbols, instruction by instruction.
class Interpreter {
 public:
  Interpreter(const Plan& plan, const ModelShape& model, const Ordering& ordering,
              const TouchedByAll& touched)
      : plan_(plan),
        touched_(touched),
        ordering_(ordering),
        place_faults_(plan, faults_),
        census_(plan, model),
        flow_(plan, model, place_faults_),
        units_(plan, model, ordering, place_faults_) {}

  std::vector<std::string> run() {
    // What meets is interpreted together, everything else by itself.
    for (const auto& places : ordering_.sequence()) {
      for (const Place& place : places) forget(place);
      switch (at(plan_, places[0]).op) {
        case Op::kReduce:
          units_.reduce(places);
          break;
        case Op::kGather:
          units_.gather(places);
          break;
        case Op::kExchange:
          flow_.exchange(places);
          break;
        case Op::kSend:
          flow_.transfer(places[0], places[1]);
          break;
        case Op::kRecv:
          flow_.transfer(places[1], places[0]);
          break;
        default:
          for (const Place& place : places) step(place);
      }

      // One fault brings others with it; after some there is nothing new to say.
      if (faults_.size() > kEnough) return std::move(faults_);
    }

    // What is missing is seen only at the end.
    census_.end(faults_);
    units_.end(faults_);
    return std::move(faults_);
  }

 private:
  static constexpr size_t kEnough = 100;

  /// A buffer that one kind of value is written to has none of the other kind any more.
  void forget(Place place) {
    const Instruction& i = at(plan_, place);
    const bool of_units = i.op == Op::kReduce || i.op == Op::kGather || i.op == Op::kUpdate ||
                          i.op == Op::kFetch || i.op == Op::kEvict;

    // A write is of a unit if the op moves units, or if the buffer is a gradient's or a fold's.
    // Writes that an operand names (`word`) are of no tensor, except those of Load and Recv.
    for (int b : touched_[place.rank][place.queue][place.index].writes) {
      bool unit = of_units;
      for (const UnitBuffer& g : i.flow.gradients) unit |= g.buffer == b;
      for (const Add& add : i.adds) unit |= add.into == b;
      const bool word =
          std::any_of(i.operands.begin(), i.operands.end(), [b](const Operand& operand) {
            return operand.rank < 0 && operand.buffer == b && operand.access != Access::kRead;
          });
      if (unit || (word && i.op != Op::kLoad && i.op != Op::kRecv)) flow_.forget(place.rank, b);
      if (!unit) units_.forget(place.rank, b);
      units_.guard(place, b, word);
    }
  }

  /// An instruction that meets nobody. Parameters are looked at before a pass puts its results,
  /// gradients after it.
  void step(Place place) {
    const Instruction& i = at(plan_, place);
    switch (i.op) {
      case Op::kLoad:
        return flow_.load(place);
      case Op::kForward:
        census_.count(place, i, place_faults_);
        units_.need_parameters(place);
        units_.mark_loss(place);
        return flow_.forward(place);
      case Op::kBackward:
        census_.count(place, i, place_faults_);
        units_.need_parameters(place);
        flow_.backward(place);
        return units_.write_gradients(place);
      case Op::kFold:
        return units_.fold(place);
      case Op::kNorm:
        return units_.norm(place);
      case Op::kVote:
        return units_.vote(place);
      case Op::kUpdate:
        return units_.update(place);
      case Op::kFetch:
      case Op::kEvict:
        return units_.move(place);
      default:
        return;
    }
  }

  const Plan& plan_;
  const TouchedByAll& touched_;
  const Ordering& ordering_;
  std::vector<std::string> faults_;
  PlaceFaults place_faults_;
  Census census_;
  FlowValues flow_;
  UnitSymbols units_;
};

}  // namespace

std::vector<std::string> check_values(const Plan& plan, const ModelShape& model,
                                      const Ordering& ordering, const TouchedByAll& touched) {
  return Interpreter(plan, model, ordering, touched).run();
}

}  // namespace tutti
