// Since conflicting accesses are ordered (plan/check/races.h), one interleaving stands for all.
#include "plan/check/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "plan/check/flow.h"
#include "plan/check/unit_symbols.h"

namespace tutti {

namespace {

/// Every segment runs once forward and once back, in one piece or two, on every micro-batch; in
/// evaluation forward, on one of every data rank's.
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
    if (i.again) return;
    auto& done = done_[number(i.block, i.segment, i.lane, i.micro)];
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
  std::vector<std::array<int, 3>> done_;  // forward, input part, weight part
};

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
      if (faults_.size() > kEnough) return std::move(faults_);
    }
    census_.end(faults_);
    units_.end(faults_);
    return std::move(faults_);
  }

 private:
  static constexpr size_t kEnough = 100;

  /// What lies in a buffer as one kind of value is no longer there once another kind is written.
  void forget(Place place) {
    const Instruction& i = at(plan_, place);
    const bool of_units = i.op == Op::kReduce || i.op == Op::kGather || i.op == Op::kUpdate ||
                          i.op == Op::kFetch || i.op == Op::kEvict;
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
