// How a rank of a mesh gets its program:
//
//   1. the schedule says in which order its stage works on chunks and micro-batches; cells become
//      visits, one layer forward, or back; ZeRO-3 gathers what visits need some uses ahead
//      (MeshWork)
//   2. visits become instructions, put on queues in an order that would be right on one queue:
//      here, with the messages between stages (MeshMessages), sums (MeshSums) and the commit
//      (MeshCommit)
//   3. what must wait for what on another queue follows from the buffers that both touch
//      (MeshBuilder); MeshMemory and MeshBorders say where things are
#include "plan/make/rank_program.h"

#include <set>
#include <utility>

#include "base/error.h"
#include "plan/ir/tags.h"
#include "plan/make/mesh_commit.h"
#include "plan/make/mesh_messages.h"
#include "plan/make/mesh_sums.h"

namespace tutti {

namespace {

using Kind = LayerVisit::Kind;

/// Makes the program of one rank: walks its visits and adds their instructions to the builder.
class RankMaker {
 public:
  RankMaker(const ModelShape& model, const MeshOptions& options, const MeshPlaces& places,
            const std::vector<std::vector<int>>& groups, int rank)
      : model_(model),
        options_(options),
        homes_(model, options, places, groups, rank),
        work_(homes_),
        program_(rank, queues()),
        state_(work_, program_),
        borders_(work_, program_),
        messages_(work_, borders_, program_),
        reduces_(work_, state_, program_),
        updates_(work_, state_, program_) {}

  Program make() {
    // The order here is one in which a single queue could run the step. The builder puts every
    // instruction on its own queue and adds the events that keep the order where it matters.
    if (!options_.forward_only) updates_.acquire();
    for (size_t p = 0; p < work_.visits().size(); ++p) {
      bring_for(p);
      run(work_.visits()[p]);
    }
    if (!options_.forward_only) updates_.commit();
    return program_.finish();
  }

 private:
  std::vector<QueueUse> queues() const;
  void run(const LayerVisit& visit);
  void bring_for(size_t visit);
  void load(const LayerVisit& visit);
  void forward(const LayerVisit& visit, bool again);
  void exchange(const LayerVisit& visit, int segment, int output, bool again);
  void backward(const LayerVisit& visit);
  void backward(const LayerVisit& visit, int column, int segment, bool again);
  void exchange_gradient(const LayerVisit& visit, int segment, int output);
  Flow flow(const LayerVisit& visit, int column, int segment, bool again);
  Instruction meeting_of_columns(const LayerVisit& visit, int segment, int output);
  void add_exchange(Instruction exchange, int64_t bytes);
  template <class F>
  void each_column(F&& f) {
    for (int64_t c = homes_.columns.begin; c < homes_.columns.end; ++c) f(static_cast<int>(c));
  }

  const ModelShape& model_;
  const MeshOptions& options_;
  const MeshHomes homes_;
  const MeshWork work_;
  MeshBuilder program_;
  MeshMemory state_;
  MeshBorders borders_;
  MeshMessages messages_;
  MeshSums reduces_;
  MeshCommit updates_;
  size_t brought_ = 0;      // uses that have got their instruction
  uint32_t exchanges_ = 0;  // so far: tensor ranks count alike, so they agree on ids
  std::set<int> loaded_;    // micro-batches
};

std::vector<QueueUse> RankMaker::queues() const {
  std::vector<QueueUse> uses{QueueUse::kCompute};

  // Without overlap what would stand on data or tier stands on compute. Messages keep their queues:
  // in one queue a stage's sends and receives could wait for each other in a circle.
  if (options_.overlap) uses.push_back(QueueUse::kData);
  if (options_.mesh.pipeline > 1)
    uses.insert(uses.end(), {QueueUse::kActivationsIn, QueueUse::kActivationsOut,
                             QueueUse::kGradientsIn, QueueUse::kGradientsOut});
  if (work_.comes_back)
    uses.insert(uses.end(), {QueueUse::kActivationsInBack, QueueUse::kActivationsOutBack,
                             QueueUse::kGradientsInBack, QueueUse::kGradientsOutBack});
  if (options_.overlap && options_.offload_moments()) uses.push_back(QueueUse::kTier);

  // Sums over stages meet ranks that come to them at other times.
  if (homes_.shares_far()) uses.push_back(QueueUse::kShared);
  return uses;
}

void RankMaker::run(const LayerVisit& visit) {
  // A rank without a micro-batch in this turn computes nothing, but meets the others in their sums.
  if (work_.idle(visit)) {
    if (visit.kind == Kind::kBoth || visit.kind == Kind::kWeight) reduces_.after(visit);
    return;
  }

  if (visit.kind == Kind::kForward) {
    if (work_.is_first(visit)) {
      load(visit);
      messages_.receive_activations(visit);
    }
    forward(visit, false);
    if (work_.is_last(visit)) messages_.send_activations(visit);
    return;
  }

  // Backward. Only the whole or the input part hands a gradient to the layer before, so only these
  // receive, compute again and send; sums follow when the parameters' gradients are there.
  const bool goes_on = visit.kind != Kind::kWeight;  // to the layer before
  if (goes_on && work_.is_last(visit)) messages_.receive_gradients(visit);
  if (goes_on && options_.recompute != Recompute::kNone) {
    LayerVisit again = visit;
    again.kind = Kind::kForward;
    forward(again, true);
  }

  backward(visit);
  if (goes_on && work_.is_first(visit)) messages_.send_gradients(visit);
  if (visit.kind != Kind::kInput) reduces_.after(visit);
}

/// Puts those uses on their queue whose slots are free by this visit: up to `depth` ahead of the
/// visit that needs them (prefetch).
void RankMaker::bring_for(size_t visit) {
  // Each replica of a home gathers by itself, so ids number uses and replicas.
  const Mesh& mesh = options_.mesh;
  const int home = homes_.at.pipeline * mesh.tensor + homes_.at.tensor;
  const int replica = home * (mesh.data / mesh.shards) + homes_.at.data / mesh.shards;

  const std::vector<MeshUse>& uses = work_.uses();
  for (; brought_ < uses.size(); ++brought_) {
    const MeshUse& use = uses[brought_];

    // A slot is free once the use before it in the slot has had its last visit.
    const bool free =
        brought_ < work_.use_slots() || uses[brought_ - work_.use_slots()].last < visit;

    // On one queue a gather ahead of its time would only make compute wait, so it comes right
    // before its visit.
    if (!free || (!options_.overlap && use.first > visit)) break;

    // What only idle visits would read need not be fetched; but a gather needs every rank, since
    // the others read this one's slice.
    if (use.idle && !homes_.gathers()) continue;

    Instruction i;
    i.op = homes_.gathers() ? Op::kGather : Op::kFetch;
    if (homes_.gathers()) {
      i.parcel = homes_.places.alone_in[use.unit];
      i.id = kGatherIds.at(brought_ * static_cast<size_t>(mesh.ranks() / mesh.shards) +
                           static_cast<size_t>(replica));
      i.group = homes_.replica(use.unit);
    }

    // A gather copies slices of all ranks into the slot, a fetch this rank's own values.
    const auto operand = [&](OperandRole role, Access access, int buffer) {
      i.operands.push_back({role, access, buffer, use.unit});
    };
    if (homes_.gathers()) {
      operand(OperandRole::kPart, Access::kRead, state_.parameter(use.unit));
      if (!use.idle) operand(OperandRole::kWhole, Access::kWrite, state_.brought(brought_));
    } else {
      i.block = use.unit;
      operand(OperandRole::kStored, Access::kRead, state_.parameter(use.unit));
      operand(OperandRole::kResident, Access::kWrite, state_.brought(brought_));
    }
    program_.add(homes_.gathers() ? QueueUse::kData : QueueUse::kTier, std::move(i));
  }
}

/// Takes a micro-batch from the loader: once, though several chunks of the stage may read it.
void RankMaker::load(const LayerVisit& visit) {
  if (!work_.reads_data(visit.chunk) || !loaded_.insert(visit.micro).second) return;
  Instruction i = work_.instruction(Op::kLoad, visit);
  for (size_t d = 0; d < model_.data_bytes.size(); ++d)
    i.operands.push_back(
        {OperandRole::kData, Access::kWrite, borders_.data(visit.micro, static_cast<int>(d))});
  program_.add(QueueUse::kCompute, std::move(i));
}

/// The buffers that forward and backward have in common. The weight part reads no parameters.
Flow RankMaker::flow(const LayerVisit& visit, int column, int segment, bool again) {
  const int block = model_.block_at(visit.layer, column);
  const SegmentShape& shape = model_.blocks[block].segments[segment];
  Flow flow;
  for (size_t i = 0; i < shape.inputs.size(); ++i)
    flow.in.push_back(borders_.read(visit, column, segment, static_cast<int>(i), again));
  for (size_t o = 0; o < shape.outputs.size(); ++o)
    flow.out.push_back(borders_.written(visit, column, segment, static_cast<int>(o), again));
  flow.saved = borders_.saved(visit, column, segment, again || visit.kind != Kind::kForward);
  flow.work = borders_.work();

  // The block's own unit comes first, then the owners of what it shares: at home, or a copy.
  if (visit.kind == Kind::kWeight) return flow;
  if (model_.blocks[block].unit_size > 0)
    flow.parameters.push_back({block, state_.parameters(block, visit)});
  for (int owner : homes_.owners_of(block))
    flow.parameters.push_back({owner, homes_.is_home(owner) ? state_.parameters(owner, visit)
                                                            : state_.copy(block, owner)});
  return flow;
}

/// A layer forward, segment by segment. `again`: only what backward computes a second time.
void RankMaker::forward(const LayerVisit& visit, bool again) {
  const auto& segments = homes_.segments(visit.layer);
  for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
    if (again && !work_.recomputed(visit.layer, segments[s])) continue;

    // Columns of a segment run one after the other, then they meet in its exchanges.
    const bool ends = visit.layer + 1 == model_.layers() && s == homes_.last_segment(visit.layer);
    each_column([&](int column) {
      Instruction i =
          work_.instruction(Op::kForward, visit, model_.block_at(visit.layer, column), s);
      i.again = again;
      i.flow = flow(visit, column, s, again);

      // A gradient that will take the memory of an input is named here already: from this Forward
      // on the buffer is the gradient's.
      for (size_t in = 0; !again && in < i.flow.in.size(); ++in)
        if (borders_.consumes(visit, column, s, static_cast<int>(in))) {
          i.flow.grad_in.resize(i.flow.in.size(), -1);
          i.flow.grad_in[in] = i.flow.in[in];
        }

      if (ends && !again)
        i.operands.push_back({OperandRole::kLoss, Access::kUpdate, state_.losses});
      program_.add(QueueUse::kCompute, std::move(i));
    });

    for (size_t o = 0; o < segments[s].outputs.size(); ++o)
      if (segments[s].outputs[o].exchange != Exchange::kNone)
        exchange(visit, s, static_cast<int>(o), again);
  }
}

/// An Exchange that has its number, which all tensor ranks of the stage and data
/// coordinate agree on.
Instruction RankMaker::meeting_of_columns(const LayerVisit& visit, int segment, int output) {
  const Mesh& mesh = options_.mesh;
  const auto number = static_cast<uint32_t>(homes_.at.pipeline * mesh.data + homes_.at.data);
  Instruction i = work_.instruction(Op::kExchange, visit, model_.block_at(visit.layer, 0), segment);
  i.id = kExchangeIds.at(exchanges_++ * static_cast<uint64_t>(mesh.pipeline * mesh.data) + number);
  i.group = homes_.tensor_ranks();
  i.output = output;
  return i;
}

/// Adds an Exchange. `bytes`: of one column's partial sum. What arrives of other ranks needs room.
void RankMaker::add_exchange(Instruction exchange, int64_t bytes) {
  const int64_t parts = arriving_parts(model_.columns, options_.mesh.tensor);
  if (exchange.exchange == Exchange::kScatter && parts > 0)
    exchange.flow.work = borders_.arriving_sums(parts * (bytes / model_.columns));
  program_.add(QueueUse::kCompute, std::move(exchange));
}

void RankMaker::exchange(const LayerVisit& visit, int segment, int output, bool again) {
  const OutputShape& out = homes_.segments(visit.layer)[segment].outputs[output];
  Instruction i = meeting_of_columns(visit, segment, output);
  i.again = again;
  i.exchange = out.exchange;
  each_column([&](int column) {
    // A gather leaves one whole buffer, a scatter a part for each column.
    i.flow.in.push_back(borders_.written(visit, column, segment, output, again));
    const int to = borders_.after_exchange(visit, column, segment, output, again);
    if (i.exchange == Exchange::kScatter || i.flow.out.empty()) i.flow.out.push_back(to);
  });
  add_exchange(std::move(i), out.bytes);
}

/// Exchanges what the next segment's backward left as the gradient of an output, the other way
/// round: a gathered output's gradient is scattered, a scattered one's gathered.
void RankMaker::exchange_gradient(const LayerVisit& visit, int segment, int output) {
  const MeshBorders::Consumer next = borders_.consumer(visit, segment, output);
  if (!next.exists) return;
  TUTTI_CHECK(next.here, "a chunk ends with an exchange");
  const bool gathered =
      homes_.segments(visit.layer)[segment].outputs[output].exchange == Exchange::kGather;
  Instruction i = meeting_of_columns(visit, segment, output);
  i.part = Part::kInput;
  i.exchange = gathered ? Exchange::kScatter : Exchange::kGather;
  each_column([&](int column) {
    i.flow.in.push_back(borders_.grad_in(next.visit, column, next.segment, next.input));
    const int to = borders_.grad_out(visit, column, segment, output);
    if (i.exchange == Exchange::kScatter || i.flow.out.empty()) i.flow.out.push_back(to);
  });
  add_exchange(std::move(i),
               homes_.segments(next.visit.layer)[next.segment].inputs[next.input].grad_bytes);
}

/// A layer back: gradients of exchanged outputs are exchanged before the segment reads them.
void RankMaker::backward(const LayerVisit& visit) {
  const bool again = work_.recomputed_whole(visit.layer);
  for (int s = homes_.last_segment(visit.layer); s >= 0; --s) {
    const auto& outputs = homes_.segments(visit.layer)[s].outputs;
    for (size_t o = 0; visit.kind != Kind::kWeight && o < outputs.size(); ++o)
      if (outputs[o].exchange != Exchange::kNone) exchange_gradient(visit, s, static_cast<int>(o));
    each_column([&](int column) { backward(visit, column, s, again); });
  }
}

void RankMaker::backward(const LayerVisit& visit, int column, int segment, bool again) {
  const int block = model_.block_at(visit.layer, column);
  const SegmentShape& shape = model_.blocks[block].segments[segment];
  Instruction i = work_.instruction(Op::kBackward, visit, block, segment);
  i.part = visit.kind == Kind::kBoth    ? Part::kBoth
           : visit.kind == Kind::kInput ? Part::kInput
                                        : Part::kWeight;
  i.flow = flow(visit, column, segment, again);

  // Gradients of borders are read and made by the input part, those of parameters by the weight
  // part; `deferred` hands over between the two.
  if (i.part != Part::kWeight) {
    for (size_t o = 0; o < shape.outputs.size(); ++o)
      i.flow.grad_out.push_back(borders_.grad_out(visit, column, segment, static_cast<int>(o)));
    for (size_t in = 0; in < shape.inputs.size(); ++in)
      i.flow.grad_in.push_back(borders_.grad_in(visit, column, segment, static_cast<int>(in)));
  }
  if (i.part != Part::kBoth) i.flow.deferred = borders_.deferred(visit, column, segment);
  if (i.part != Part::kInput)
    i.flow.gradients = state_.gradients(block, work_.routes()[visit.micro]);
  program_.add(QueueUse::kCompute, std::move(i));
}

}  // namespace

Program rank_program(const ModelShape& model, const MeshOptions& options, const MeshPlaces& places,
                     const std::vector<std::vector<int>>& groups, int rank) {
  return RankMaker(model, options, places, groups, rank).make();
}

}  // namespace tutti
