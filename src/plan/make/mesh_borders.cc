// A micro-batch in flight has its own buffers, named by its slot. What is only needed while a
// layer goes back is shared by all micro-batches: gradients, by layers in turn, and whatever
// is computed again.
#include "plan/make/mesh_borders.h"

#include <algorithm>

namespace tutti {

namespace {

/// Whether some output is an input's memory passed on (a residual stream, for instance).
bool has_aliases(const ModelShape& model) {
  for (const BlockShape& block : model.blocks)
    for (const SegmentShape& segment : block.segments)
      for (const OutputShape& out : segment.outputs)
        if (out.same_as >= 0) return true;
  return false;
}

}  // namespace

MeshBorders::MeshBorders(const MeshWork& work, MeshBuilder& program)
    : work_(work),
      homes_(work.homes),
      model_(work.homes.model),
      program_(program),
      by_segment_(model_.columns > 1 || has_aliases(model_)) {
  // Segments are numbered through the model, so that neighbours can take turns.
  int before = 0;
  for (int layer = 0; layer < model_.layers(); ++layer) {
    first_segment_.push_back(before);
    before += homes_.last_segment(layer) + 1;
  }

  // One buffer of temporaries serves all segments: they run one after the other.
  int64_t bytes = 0;
  for (const BlockShape& block : model_.blocks)
    for (const SegmentShape& segment : block.segments) bytes = std::max(bytes, segment.work_bytes);
  if (bytes == 0) return;
  work_buffer_ = program_.add_buffer("work", BufferKind::kWork, bytes);
  program_.at(work_buffer_).temporaries = true;
}

int MeshBorders::data(int micro, int index) {
  const int made = buffer(BufferKind::kData, model_.data_bytes[index], "data {} slot {}", index,
                          work_.data_slot(micro));
  program_.at(made).lent = work_.lends_data();
  return made;
}

/// The part of a name for what is computed again. If backward runs in two parts, it stays until the
/// second of them, so it needs a place of its own.
std::string MeshBorders::again_place(const LayerVisit& visit, bool again) const {
  if (!again || !work_.split) return "";
  return fmt::format(" layer {} slot {}", visit.layer, work_.part_slot(visit));
}

/// Whether a border is not kept from forward to backward: inside a block that is computed again.
bool MeshBorders::transient(const LayerVisit& visit, int segment, bool again) const {
  return work_.recomputed_whole(visit.layer) &&
         (segment < homes_.last_segment(visit.layer) || again);
}

int MeshBorders::saved(const LayerVisit& visit, int column, int segment, bool again) {
  const SegmentShape& shape = homes_.segment(visit.layer, column, segment);
  if (shape.saved_bytes == 0) return -1;
  if (work_.recomputed(visit.layer, shape))
    return buffer(BufferKind::kSaved, shape.saved_bytes, "saved again {}.{}{}", segment, column,
                  again_place(visit, again));
  return buffer(BufferKind::kSaved, shape.saved_bytes, "saved {}.{} slot {}",
                model_.block_at(visit.layer, column), segment, work_.slot(visit));
}

int MeshBorders::deferred(const LayerVisit& visit, int column, int segment) {
  const SegmentShape& shape = homes_.segment(visit.layer, column, segment);
  if (shape.deferred_bytes == 0) return -1;
  return buffer(BufferKind::kSaved, shape.deferred_bytes, "deferred {}.{} slot {}",
                model_.block_at(visit.layer, column), segment, work_.slot(visit));
}

int MeshBorders::arriving_sums(int64_t bytes) {
  return buffer(BufferKind::kMessage, bytes, "arriving sums");
}

int MeshBorders::written(const LayerVisit& visit, int column, int segment, int output, bool again) {
  const OutputShape& out = homes_.segment(visit.layer, column, segment).outputs[output];
  if (out.same_as >= 0) return read(visit, column, segment, out.same_as, again);

  // Partial sums are gone once they are added up, so all micro-batches share one place.
  if (out.exchange == Exchange::kScatter)
    return buffer(BufferKind::kWork, out.bytes, "partial sum {}.{} column {}", segment, output,
                  column);
  if (transient(visit, segment, again))
    return buffer(BufferKind::kBorder, out.bytes, "border again {}.{} column {}{}", segment, output,
                  column, again_place(visit, again));
  return buffer(BufferKind::kBorder, out.bytes, "border {}.{}.{} slot {}",
                model_.block_at(visit.layer, column), segment, output, work_.slot(visit));
}

int MeshBorders::after_exchange(const LayerVisit& visit, int column, int segment, int output,
                                bool again) {
  const OutputShape& out = homes_.segment(visit.layer, column, segment).outputs[output];
  if (out.exchange == Exchange::kNone) return written(visit, column, segment, output, again);

  // A gathered border is one buffer for all columns of the rank; parts of a scattered one
  // are one each.
  const bool gone = transient(visit, segment, again), whole = out.exchange == Exchange::kGather;
  if (gone && whole)
    return buffer(BufferKind::kBorder, out.read_bytes, "whole again {}.{}{}", segment, output,
                  again_place(visit, again));
  if (gone)
    return buffer(BufferKind::kBorder, out.read_bytes, "part again {}.{} column {}{}", segment,
                  output, column, again_place(visit, again));

  return buffer(BufferKind::kBorder, out.read_bytes, "{} {}.{}.{} slot {}",
                whole ? "whole" : "part",
                whole ? visit.layer : model_.block_at(visit.layer, column), segment, output,
                work_.slot(visit));
}

/// From the data; from the segment before in the block; from another stage; or from the last
/// segment of the layer before.
int MeshBorders::read(const LayerVisit& visit, int column, int segment, int input, bool again) {
  const InputShape& in = homes_.segment(visit.layer, column, segment).inputs[input];
  if (in.data) return data(visit.micro, in.index);
  if (segment > 0) return after_exchange(visit, column, segment - 1, in.index, again);
  const LayerVisit before = work_.further(visit, -1);
  if (!homes_.runs(before.chunk)) return received(visit, column, in.index);
  return after_exchange(before, column, homes_.last_segment(before.layer), in.index, false);
}

int MeshBorders::received(const LayerVisit& visit, int column, int output) {
  const int before = visit.layer - 1;
  const OutputShape& out =
      homes_.segment(before, column, homes_.last_segment(before)).outputs[output];
  return buffer(BufferKind::kBorder, out.read_bytes, "received {}.{} column {} slot {}",
                visit.chunk, output, column, work_.slot(visit));
}

/// Gradients of inputs are needed by one more backward only, so two buffers in turn are enough;
/// except at the end of a chunk, where they are sent at some later time.
int MeshBorders::grad_in(const LayerVisit& visit, int column, int segment, int input) {
  const SegmentShape& shape = homes_.segment(visit.layer, column, segment);
  if (!shape.inputs[input].wanted) return -1;

  // Memory that is passed on is passed back: the gradients of both borders are one. Memory that is
  // consumed is the input's own.
  for (size_t o = 0; o < shape.outputs.size(); ++o)
    if (shape.outputs[o].same_as == input)
      return grad_out(visit, column, segment, static_cast<int>(o));
  if (consumes(visit, column, segment, input)) return read(visit, column, segment, input, false);

  const int64_t bytes = shape.inputs[input].grad_bytes;
  if (segment == 0 && work_.is_first(visit))
    return buffer(BufferKind::kBorder, bytes, "gradient out {}.{} column {} slot {}", visit.chunk,
                  input, column, work_.slot(visit));

  // Columns run alternately and passed-on memory skips segments: then turns go by layers, with a
  // buffer for each segment.
  if (by_segment_)
    return buffer(BufferKind::kBorder, bytes, "gradient {}.{} column {} turn {}", segment, input,
                  column, visit.layer % 2);
  return buffer(BufferKind::kBorder, bytes, "gradient {} turn {}", input,
                turn(visit.layer, segment));
}

bool MeshBorders::consumes(const LayerVisit& visit, int column, int segment, int input) const {
  const InputShape& in = homes_.segment(visit.layer, column, segment).inputs[input];
  if (!in.consumed || !in.wanted || homes_.options.forward_only || work_.split) return false;

  // The memory must be this rank's to give away, not what a message brought.
  const LayerVisit writer = segment > 0 ? visit : work_.further(visit, -1);
  if (!homes_.runs(writer.chunk)) return false;

  const SegmentShape& shape = homes_.segment(visit.layer, column, segment);
  const SegmentShape& before = homes_.segment(
      writer.layer, column, segment > 0 ? segment - 1 : homes_.last_segment(writer.layer));

  // What is computed again reads its inputs, or writes its outputs, a second time; what comes from
  // an exchange may be read by other columns.
  return !work_.recomputed(visit.layer, shape) && !work_.recomputed(writer.layer, before) &&
         before.outputs[in.index].exchange == Exchange::kNone;
}

MeshBorders::Consumer MeshBorders::consumer(const LayerVisit& visit, int segment,
                                            int output) const {
  Consumer c;
  c.visit = visit;
  c.segment = segment + 1;
  if (segment == homes_.last_segment(visit.layer)) {
    if (visit.layer + 1 == model_.layers()) return c;
    c.visit = work_.further(visit, 1);
    c.segment = 0;
  }
  c.here = homes_.runs(c.visit.chunk);
  const auto& inputs = homes_.segments(c.visit.layer)[c.segment].inputs;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!inputs[i].data && inputs[i].index == output && inputs[i].wanted)
      c.input = static_cast<int>(i);
  c.exists = c.input >= 0;
  return c;
}

int MeshBorders::grad_out(const LayerVisit& visit, int column, int segment, int output) {
  const OutputShape& out = homes_.segment(visit.layer, column, segment).outputs[output];
  const Consumer next = consumer(visit, segment, output);
  if (!next.exists) return -1;

  // It comes in a message, in the consumer's memory, or through an exchange.
  if (!next.here)
    return buffer(BufferKind::kBorder, out.read_bytes, "gradient in {}.{} column {} slot {}",
                  visit.chunk, output, column, work_.slot(visit));
  if (out.exchange == Exchange::kNone) return grad_in(next.visit, column, next.segment, next.input);

  // What the exchange of the gradient leaves: parts of a sum, or all columns' parts.
  if (out.exchange == Exchange::kGather)
    return buffer(BufferKind::kBorder, out.bytes, "gradient part {}.{} column {} turn {}", segment,
                  output, column, visit.layer % 2);
  const int64_t whole = out.read_bytes * model_.columns;
  return buffer(BufferKind::kBorder, whole, "gradient whole {}.{} turn {}", segment, output,
                visit.layer % 2);
}

}  // namespace tutti
