// What a rank of a mesh does by itself, on hashes (hashed_memory.h): passes through segments,
// folds, squares, updates, and what goes between the tiers.
#pragma once

#include <vector>

#include "unit/plan/hashed_memory.h"

namespace tutti::test {

/// The memory must outlive it.
class MeshSegments {
 public:
  explicit MeshSegments(ProgramMemory& memory) : memory_(memory), model_(memory.model) {}

  void load(int rank, const Instruction& i, int step) {
    const auto tensors = operands_of(i, OperandRole::kData);
    const auto& buffers = memory_.plan.programs[rank].buffers;
    for (size_t b = 0; b < buffers.size(); ++b)
      if (buffers[b].lent)
        memory_.spoil(rank, static_cast<int>(b));  // the loader lends one micro-batch at a time
    for (size_t d = 0; d < tensors.size(); ++d)
      memory_.fill(rank, tensors[d]->buffer, model_.data_bytes.at(d),
                   hash_of(d, step, i.lane, i.micro));
  }

  void forward(int rank, const Instruction& i) {
    const SegmentShape& shape = segment(i);
    const uint64_t read = inputs(rank, i), h = add_hashes(read, parameters(rank, i));
    memory_.spoil(rank, i.flow.work);
    for (size_t o = 0; o < shape.outputs.size(); ++o)
      if (shape.outputs[o].same_as < 0)
        memory_.fill(rank, i.flow.out[o], shape.outputs[o].bytes, hash_of(h, o));
    if (i.flow.saved >= 0) memory_.fill(rank, i.flow.saved, shape.saved_bytes, hash_of(h, 77));
    for (size_t k = 0; k < i.flow.grad_in.size(); ++k)
      if (i.flow.grad_in[k] >= 0)
        memory_.fill(rank, i.flow.grad_in[k], shape.inputs[k].grad_bytes,
                     hash_of(read, kConsumed, k));
    for (const Operand* loss : operands_of(i, OperandRole::kLoss))
      memory_.at(rank, loss->buffer).at(0) += hash_of(h, i.lane, i.micro);
  }

  void backward(int rank, const Instruction& i) {
    const SegmentShape& shape = segment(i);
    const uint64_t known = known_to_backward(rank, i);
    uint64_t left = 0;  // what the weight part knows of the gradients that came
    const bool defers = shape.deferred_bytes > 0;
    if (i.part != Part::kWeight) {
      uint64_t h = add_hashes(known, parameters(rank, i));
      for (size_t o = 0; o < i.flow.grad_out.size(); ++o)
        if (i.flow.grad_out[o] >= 0)
          h = add_hashes(h, memory_.tensor(rank, i.flow.grad_out[o], gradient_bytes(i, o)));
      for (size_t k = 0; k < i.flow.grad_in.size(); ++k)
        if (i.flow.grad_in[k] >= 0)  // to one that is passed on it adds
          memory_.fill(rank, i.flow.grad_in[k], shape.inputs[k].grad_bytes, hash_of(h, k));
      left = defers ? hash_of(h, 55) : 0;
      if (defers && i.part == Part::kInput)
        memory_.fill(rank, i.flow.deferred, shape.deferred_bytes, left);
    }
    if (defers)
      left = i.part == Part::kBoth ? as_tensor(left, shape.deferred_bytes)
                                   : memory_.tensor(rank, i.flow.deferred, shape.deferred_bytes);
    memory_.spoil(rank, i.flow.work);
    if (i.part != Part::kInput) write_gradients(rank, i, add_hashes(known, left));
  }

  void fold(int rank, const Instruction& i) {
    for (const Add& sum : i.adds) {
      const Range held = memory_.buffer(rank, sum.into).range;
      const int64_t cells =
          last_cell(held.empty() ? model_.blocks[i.block].gradient_size : held.size());
      Cells &into = memory_.at(rank, sum.into), &from = memory_.at(rank, sum.from);
      for (int64_t c = 0; c < cells; ++c) into.at(c) = add_hashes(into.at(c), from.at(c));
    }
  }

  void norm(int rank, const Instruction& i) {
    uint64_t& squares = memory_.at(rank, buffer_of(i, OperandRole::kSquares)).at(0);
    for (const Operand* sum : operands_of(i, OperandRole::kSum)) {
      const int64_t first =
          memory_.place_of(rank, sum->buffer, sum->range.begin) - first_cell(sum->range.begin);
      for (int64_t c = first_cell(sum->range.begin); c < last_cell(sum->range.end); ++c)
        squares += hash_of(sum->unit, c, memory_.at(rank, sum->buffer).at(first + c));
    }
  }

  /// Of the gradients some may be in other ranks' memory.
  void update(int rank, const Instruction& i) {
    const int parameter = buffer_of(i, OperandRole::kParameter),
              moment = buffer_of(i, OperandRole::kMoment);
    const uint64_t verdict = memory_.at(rank, buffer_of(i, OperandRole::kVerdict)).at(0);
    const Range own = range_of(memory_.plan.ownership[i.block].moments, rank);
    for (const Operand* gradient : operands_of(i, OperandRole::kGradient)) {
      const int from = gradient->rank < 0 ? rank : gradient->rank;
      for (int64_t c = first_cell(gradient->range.begin); c < last_cell(gradient->range.end); ++c) {
        const int64_t at = c * kCellFloats;
        uint64_t& slot = memory_.at(rank, moment).at(c - first_cell(own.begin));
        uint64_t& value = memory_.at(rank, parameter).at(memory_.place_of(rank, parameter, at));
        const uint64_t sum =
            memory_.at(from, gradient->buffer).at(memory_.place_of(from, gradient->buffer, at));
        slot = hash_of(slot, sum, verdict);
        value = hash_of(value, slot);
      }
    }
  }

  /// Fetch and Evict.
  void move(int rank, const Instruction& i) {
    const auto stored = operands_of(i, OperandRole::kStored),
               resident = operands_of(i, OperandRole::kResident);
    for (size_t k = 0; k < stored.size(); ++k) {
      const bool fetch = i.op == Op::kFetch;
      const Cells& from = memory_.at(rank, (fetch ? stored : resident)[k]->buffer);
      Cells& to = memory_.at(rank, (fetch ? resident : stored)[k]->buffer);
      std::copy_n(from.begin(), std::min(from.size(), to.size()), to.begin());
    }
  }

 private:
  static constexpr int kConsumed = 99;

  const SegmentShape& segment(const Instruction& i) const {
    return model_.blocks[i.block].segments[i.segment];
  }
  /// What a tensor that is filled with `h` reads as.
  static uint64_t as_tensor(uint64_t h, int64_t bytes) {
    uint64_t found = 3;
    for (int64_t c = 0; c < cells_in(bytes); ++c) found = add_hashes(found, hash_of(h, c));
    return found;
  }
  int64_t input_bytes(const Instruction& i, size_t k) const {
    const InputShape& in = segment(i).inputs[k];
    if (in.data) return model_.data_bytes[in.index];
    const BlockShape& block = model_.blocks[i.block];
    if (i.segment > 0) return block.segments[i.segment - 1].outputs[in.index].read_bytes;
    return model_.blocks[model_.block_at(block.layer - 1, block.column)]
        .segments.back()
        .outputs[in.index]
        .read_bytes;
  }
  int64_t gradient_bytes(const Instruction& i, size_t o) const {
    const OutputShape& out = segment(i).outputs[o];
    return out.exchange == Exchange::kScatter ? out.read_bytes * model_.columns : out.bytes;
  }

  uint64_t inputs(int rank, const Instruction& i) const {
    uint64_t h = hash_of(i.block, i.segment);
    for (size_t k = 0; k < i.flow.in.size(); ++k)
      h = add_hashes(h, memory_.tensor(rank, i.flow.in[k], input_bytes(i, k)));
    return h;
  }
  /// Of an input that a segment may consume, backward knows only what forward would leave in its
  /// place: it is the same whether the plan has it left there or not.
  uint64_t inputs_of_backward(int rank, const Instruction& i) const {
    const SegmentShape& shape = segment(i);
    uint64_t h = hash_of(i.block, i.segment);
    for (size_t k = 0; k < i.flow.in.size(); ++k) {
      const int64_t left = shape.inputs[k].grad_bytes;
      const bool gone = k < i.flow.grad_in.size() && i.flow.grad_in[k] == i.flow.in[k];
      if (!shape.inputs[k].consumed)
        h = add_hashes(h, memory_.tensor(rank, i.flow.in[k], input_bytes(i, k)));
      else
        h = add_hashes(h, gone ? memory_.tensor(rank, i.flow.in[k], left)
                               : as_tensor(hash_of(inputs(rank, i), kConsumed, k), left));
    }
    return h;
  }
  /// Inputs, outputs (unless the next segment consumes them) and what forward saved.
  uint64_t known_to_backward(int rank, const Instruction& i) const {
    const SegmentShape& shape = segment(i);
    uint64_t known = inputs_of_backward(rank, i);
    for (size_t o = 0; o < shape.outputs.size(); ++o)
      if (shape.outputs[o].exchange != Exchange::kScatter && !consumed_later(i, o))
        known = add_hashes(known, memory_.tensor(rank, i.flow.out[o], shape.outputs[o].bytes));
    if (i.flow.saved >= 0)
      known = add_hashes(known, memory_.tensor(rank, i.flow.saved, shape.saved_bytes));
    return known;
  }
  bool consumed_later(const Instruction& i, size_t output) const {
    const BlockShape& block = model_.blocks[i.block];
    const bool ends = i.segment + 1 == static_cast<int>(block.segments.size());
    if (ends && block.layer + 1 == model_.layers()) return false;
    const SegmentShape& next =
        ends ? model_.blocks[model_.block_at(block.layer + 1, block.column)].segments.front()
             : block.segments[i.segment + 1];
    return std::any_of(next.inputs.begin(), next.inputs.end(), [&](const InputShape& in) {
      return !in.data && in.index == static_cast<int>(output) && in.consumed;
    });
  }

  uint64_t parameters(int rank, const Instruction& i) const {
    uint64_t h = 9;
    for (const UnitBuffer& p : i.flow.parameters) {
      const BlockShape& unit = model_.blocks[p.unit];
      if (p.unit == i.block) h = add_hashes(h, memory_.floats(rank, p.buffer, 0, unit.unit_size));
      for (const Share& share : model_.blocks[i.block].shares) {
        if (share.unit != p.unit) continue;
        const ParameterShape& shape = unit.parameters[share.parameter];
        const bool copy = !memory_.buffer(rank, p.buffer).placed.empty();
        const int64_t begin = copy ? shape.extra_gradients[share.extra] : shape.offset;
        h = add_hashes(h, memory_.floats(rank, p.buffer, begin, shape.size));
      }
    }
    return h;
  }
  /// Of a block's floats each segment writes its own cells.
  void write_gradients(int rank, const Instruction& i, uint64_t h) {
    const auto write = [&](int b, int unit, Range range) {
      const auto segments = static_cast<int64_t>(model_.blocks[i.block].segments.size());
      const int64_t first = memory_.place_of(rank, b, range.begin);
      for (int64_t c = 0; c < last_cell(range.size()); ++c)
        if (c % segments == i.segment)
          memory_.at(rank, b).at(first + c) = hash_of(h, unit, range.begin, c);
    };
    for (const UnitBuffer& g : i.flow.gradients) {
      if (g.unit == i.block) write(g.buffer, g.unit, {0, model_.blocks[g.unit].unit_size});
      for (const Share& share : model_.blocks[i.block].shares) {
        if (share.unit != g.unit) continue;
        const ParameterShape& shape = model_.blocks[g.unit].parameters[share.parameter];
        const int64_t begin = shape.extra_gradients[share.extra];
        write(g.buffer, g.unit, {begin, begin + shape.size});
      }
    }
  }

  ProgramMemory& memory_;
  const ModelShape& model_;
};

}  // namespace tutti::test
