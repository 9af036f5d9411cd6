// Both ends of a message work out its id from what it carries, so they agree without having seen
// each other. Neighbours in the pipeline have the same data and tensor coordinates.
#include "plan/make/mesh_messages.h"

#include <algorithm>

#include "plan/ir/tags.h"

namespace tutti {

namespace {

/// The queue for messages of a stage's second neighbour on the same side (zbv).
QueueUse back_of(QueueUse use) {
  switch (use) {
    case QueueUse::kActivationsIn:
      return QueueUse::kActivationsInBack;
    case QueueUse::kActivationsOut:
      return QueueUse::kActivationsOutBack;
    case QueueUse::kGradientsIn:
      return QueueUse::kGradientsInBack;
    default:
      return QueueUse::kGradientsOutBack;
  }
}

}  // namespace

MeshMessages::MeshMessages(const MeshWork& work, MeshBorders& borders, MeshBuilder& program)
    : work_(work), homes_(work.homes), borders_(borders), program_(program) {
  // Ids number tensors, so they need the widest border of the whole model.
  for (int layer = 0; layer < homes_.model.layers(); ++layer)
    widest_ = std::max(widest_, homes_.segments(layer).back().outputs.size());
}

void MeshMessages::receive_activations(const LayerVisit& first) {
  if (first.layer == 0 || homes_.runs(first.chunk - 1)) return;
  each_border(work_.further(first, -1), [&](int column, int output, int64_t bytes, uint32_t id) {
    add(Op::kRecv, QueueUse::kActivationsIn, first, borders_.received(first, column, output), bytes,
        id, first.chunk - 1);
  });
}

void MeshMessages::send_activations(const LayerVisit& last) {
  if (last.layer + 1 == homes_.model.layers() || homes_.runs(last.chunk + 1)) return;
  each_border(last, [&](int column, int output, int64_t bytes, uint32_t id) {
    const int from =
        borders_.after_exchange(last, column, homes_.last_segment(last.layer), output, false);
    add(Op::kSend, QueueUse::kActivationsOut, last, from, bytes, id, last.chunk + 1);
  });
}

void MeshMessages::receive_gradients(const LayerVisit& last) {
  if (last.layer + 1 == homes_.model.layers() || homes_.runs(last.chunk + 1)) return;
  each_border(last, [&](int column, int output, int64_t bytes, uint32_t id) {
    // Not every border has a gradient: what nobody trains through sends none back.
    const int to = borders_.grad_out(last, column, homes_.last_segment(last.layer), output);
    if (to >= 0) add(Op::kRecv, QueueUse::kGradientsIn, last, to, bytes, id + 1, last.chunk + 1);
  });
}

void MeshMessages::send_gradients(const LayerVisit& first) {
  if (first.layer == 0 || homes_.runs(first.chunk - 1)) return;
  const auto& inputs = homes_.segments(first.layer)[0].inputs;
  each_border(work_.further(first, -1), [&](int column, int output, int64_t bytes, uint32_t id) {
    for (size_t i = 0; i < inputs.size(); ++i)
      if (!inputs[i].data && inputs[i].index == output && inputs[i].wanted)
        add(Op::kSend, QueueUse::kGradientsOut, first,
            borders_.grad_in(first, column, 0, static_cast<int>(i)), bytes, id + 1,
            first.chunk - 1);
  });
}

/// Calls f for every tensor at the end of a layer that the next layer reads, with its bytes
/// (its gradient has as many) and the id of its way there. The id of its gradient's way back is
/// the next one.
template <class F>
void MeshMessages::each_border(const LayerVisit& end, F&& f) {
  const auto& inputs = homes_.segments(end.layer + 1)[0].inputs;
  const auto& outputs = homes_.segments(end.layer).back().outputs;
  const auto number = [](auto n) { return static_cast<uint64_t>(n); };
  const uint64_t micro = number(end.chunk) * number(work_.sequence.size()) + number(end.micro);
  for (int64_t column = homes_.columns.begin; column < homes_.columns.end; ++column)
    for (int output = 0; output < static_cast<int>(outputs.size()); ++output) {
      // What the next layer does not read does not travel.
      bool read = false;
      for (const InputShape& in : inputs) read = read || (!in.data && in.index == output);
      if (!read) continue;
      const uint64_t border =
          (micro * number(homes_.model.columns) + number(column)) * number(widest_) +
          number(output);
      f(static_cast<int>(column), output, outputs[output].read_bytes,
        kSendIds.at(2 * (border * number(homes_.options.mesh.data) + number(homes_.at.data))));
    }
}

/// Adds a Send or Recv. On the way up again (zbv) a stage has both neighbours on the other sides.
void MeshMessages::add(Op op, QueueUse queue, const LayerVisit& visit, int buffer, int64_t bytes,
                       uint32_t id, int chunk) {
  const Mesh& mesh = homes_.options.mesh;
  Instruction i = work_.instruction(op, visit);
  i.id = id;
  i.bytes = bytes;
  i.peer = mesh.rank({homes_.at.data, homes_.at.tensor, homes_.places.stage[chunk]});
  i.operands = {{OperandRole::kMessage, op == Op::kSend ? Access::kRead : Access::kWrite, buffer}};
  const bool back = work_.comes_back && visit.chunk >= mesh.pipeline;
  program_.add(back ? back_of(queue) : queue, std::move(i));
}

}  // namespace tutti
