// A rank's buffers and instructions by hand, for tests that run a model through PlanRunner: every
// micro-batch in flight has buffers of its own, and columns exchange by plain loops.
#pragma once

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/philox.h"
#include "model/core/plan_runner.h"
#include "model/core/wiring.h"
#include "support/flat_model.h"
#include "unit/model/support/named_case.h"

namespace tutti {

/// The data of a micro-batch: numbers that differ by micro-batch; the last tensor is the targets.
inline std::vector<at::Tensor> data_of(const Model& model, int micro, int64_t classes) {
  std::vector<at::Tensor> data;
  for (const Border& border : model.data) {
    if (floating(border)) {
      data.push_back(named_case::wave(border.dims, micro));
      continue;
    }
    at::Tensor ids = at::empty(border.dims, at::kLong);
    for (int64_t i = 0; i < ids.numel(); ++i)
      ids.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(
          philox_below({9, Purpose::kTest, static_cast<uint64_t>(micro), data.size()}, i, classes));
    data.push_back(ids);
  }
  return data;
}

struct PlanCaseOptions {
  int micro_batches = 1;
  bool recompute = false;  ///< every segment's forward comes again
  bool moving = false;     ///< backward finds the parameters in other buffers than forward
  RunnerOptions runner = {};
  bool apart =
      false;  ///< shared parameters and their gradients are copies outside of the owner's unit
};

class PlanCase {
 public:
  PlanCase(Model given, const std::vector<float*>& values, PlanCaseOptions o)
      : model(std::move(given)), shape(describe(model)), options(o) {
    make_units(values);
    int64_t work_bytes = 0;
    for (size_t b = 0; b < shape.blocks.size(); ++b)
      for (size_t s = 0; s < shape.blocks[b].segments.size(); ++s) {
        places.push_back({static_cast<int>(b), static_cast<int>(s)});
        work_bytes = std::max(work_bytes, segment(places.back()).work_bytes);
      }
    work = add(BufferKind::kWork, work_bytes);
    for (int m = 0; m < options.micro_batches; ++m) make_flows();
    program.queues.push_back({"compute", {}});
    if (options.recompute)
      for (int m = 0; m < options.micro_batches; ++m)
        for (size_t w = 0; w < places.size(); ++w)
          program.queues[0].instructions.push_back(
              instruction(Op::kForward, w, m, Part::kBoth, true));
    runner = std::make_unique<PlanRunner>(
        model, shape, program,
        [this](int b) { return reinterpret_cast<std::byte*>(memory[b].get()); }, accounts,
        options.runner);
  }

  void forward(size_t w, int micro, Tensors data, bool again = false) {
    runner->forward(instruction(Op::kForward, w, micro, Part::kBoth, again), pass(micro), data);
  }
  void backward(size_t w, int micro, Tensors data, Part part = Part::kBoth) {
    runner->backward(instruction(Op::kBackward, w, micro, part), pass(micro), data);
  }
  void forward_all(int micro, Tensors data) {
    for_layers([&](int layer, int s) {
      for (int c = 0; c < shape.columns; ++c) forward(at(layer, s, c), micro, data);
      exchange(layer, s, micro, true);
    });
  }
  void backward_all(int micro, Tensors data, Part part = Part::kBoth) {
    std::vector<std::pair<int, int>> order;
    for_layers([&](int layer, int s) { order.emplace_back(layer, s); });
    for (size_t i = order.size(); i-- > 0;) {
      if (part != Part::kWeight) exchange(order[i].first, order[i].second, micro, false);
      for (int c = shape.columns; c-- > 0;)
        backward(at(order[i].first, order[i].second, c), micro, data, part);
    }
  }
  static Pass pass(int micro) {
    return {.seed = 5, .step = 12, .lane = 0, .micro = micro, .first_sample = 40 + micro};
  }
  Loss loss(int micro, int column = 0) {
    return runner->loss(
        instruction(Op::kForward, at(shape.layers() - 1, last_segment(shape.layers() - 1), column),
                    micro, Part::kBoth));
  }

  const float* gradient(int micro, int unit, const ParameterShape& p, int extra = -1) const {
    if (extra < 0) return floats(own_gradients[micro][unit]) + p.offset;
    if (!options.apart) return floats(own_gradients[micro][unit]) + p.extra_gradients[extra];
    return floats(extra_gradients[micro][unit]) + p.extra_gradients[extra] -
           shape.blocks[unit].unit_size;
  }
  /// Every gradient of the micro-batch, those of further users of shared parameters, too.
  void expect_gradients(int micro, const std::vector<float*>& expected) const {
    for (size_t b = 0; b < shape.blocks.size(); ++b)
      for (const ParameterShape& p : shape.blocks[b].parameters)
        for (int e = -1; e < static_cast<int>(p.extra_gradients.size()); ++e)
          EXPECT_EQ(std::memcmp(gradient(micro, static_cast<int>(b), p, e),
                                expected[b] + (e < 0 ? p.offset : p.extra_gradients[e]),
                                p.size * sizeof(float)),
                    0)
              << p.name << ", user " << e << ", micro-batch " << micro;
  }
  void poison(int buffer) {
    std::memset(memory[buffer].get(), 0xff, program.buffers[buffer].bytes);
  }
  void poison(BufferKind kind) {
    for (size_t b = 0; b < program.buffers.size(); ++b)
      if (program.buffers[b].kind == kind) poison(static_cast<int>(b));
  }
  float* floats(int buffer) const { return memory[buffer].get(); }

  Model model;
  ModelShape shape;
  PlanCaseOptions options;
  Program program;
  Accounts accounts;
  std::vector<FlatModel::Floats> memory;
  std::vector<std::pair<int, int>> places;  ///< block and segment of all
  struct Buffers {
    Flow flow;
    std::vector<int> read;  ///< of each output, after the exchange
  };
  std::vector<std::vector<Buffers>> flows;                       ///< [micro][place]
  std::vector<int> values, moved, copies;                        ///< by unit
  std::vector<std::vector<int>> own_gradients, extra_gradients;  ///< [micro][unit]
  int work = -1;
  std::unique_ptr<PlanRunner> runner;

 private:
  const SegmentShape& segment(std::pair<int, int> place) const {
    return shape.blocks[place.first].segments[place.second];
  }
  int last_segment(int layer) const {
    return static_cast<int>(shape.blocks[shape.block_at(layer, 0)].segments.size()) - 1;
  }
  size_t at(int layer, int s, int column) const {
    return std::find(places.begin(), places.end(), std::pair{shape.block_at(layer, column), s}) -
           places.begin();
  }
  int before(size_t w) const {
    const auto [block, s] = places[w];
    const int layer = shape.blocks[block].layer, column = shape.blocks[block].column;
    if (s > 0) return static_cast<int>(w) - 1;
    return layer == 0 ? -1 : static_cast<int>(at(layer - 1, last_segment(layer - 1), column));
  }
  void for_layers(const std::function<void(int layer, int segment)>& call) const {
    for (int layer = 0; layer < shape.layers(); ++layer)
      for (int s = 0; s <= last_segment(layer); ++s) call(layer, s);
  }

  int add(BufferKind kind, int64_t bytes, int unit = -1, Range range = {}) {
    Buffer buffer;
    buffer.name = std::to_string(program.buffers.size());
    buffer.kind = kind;
    buffer.bytes = bytes;
    buffer.unit = unit;
    buffer.range = range;
    program.buffers.push_back(buffer);
    memory.push_back(FlatModel::aligned((bytes + 3) / 4, 0));
    poison(static_cast<int>(memory.size()) - 1);
    return static_cast<int>(memory.size()) - 1;
  }
  void make_units(const std::vector<float*>& from) {
    own_gradients.resize(options.micro_batches);
    extra_gradients.resize(options.micro_batches);
    for (size_t b = 0; b < shape.blocks.size(); ++b) {
      const BlockShape& block = shape.blocks[b];
      const int unit = static_cast<int>(b);
      const Range behind{block.unit_size, block.gradient_size};
      const int64_t behind_bytes = (block.gradient_size - block.unit_size) * 4;
      values.push_back(add(BufferKind::kParameter, block.unit_size * 4, unit));
      std::copy_n(from[b], block.unit_size, floats(values.back()));
      if (options.moving) moved.push_back(add(BufferKind::kParameter, block.unit_size * 4, unit));
      if (options.apart) {
        copies.push_back(add(BufferKind::kParameter, behind_bytes, unit, behind));
        for (const ParameterShape& p : block.parameters)
          for (int64_t offset : p.extra_gradients)
            std::copy_n(from[b] + p.offset, p.size,
                        floats(copies.back()) + offset - block.unit_size);
      }
      for (int m = 0; m < options.micro_batches; ++m) {
        own_gradients[m].push_back(
            options.apart
                ? add(BufferKind::kGradient, block.unit_size * 4, unit, {0, block.unit_size})
                : add(BufferKind::kGradient, block.gradient_size * 4, unit));
        if (options.apart)
          extra_gradients[m].push_back(add(BufferKind::kGradient, behind_bytes, unit, behind));
      }
    }
  }
  void make_flows() {
    std::vector<Buffers> all(places.size());
    std::vector<int> next(places.size(), -1);
    for (size_t w = 0; w < places.size(); ++w) {
      const SegmentShape& s = segment(places[w]);
      Flow& flow = all[w].flow;
      if (before(w) >= 0) next[before(w)] = static_cast<int>(w);
      for (const InputShape& in : s.inputs)
        flow.in.push_back(in.data ? add(BufferKind::kData, 0) : all[before(w)].read[in.index]);
      for (const OutputShape& out : s.outputs) {
        flow.out.push_back(out.same_as >= 0 ? flow.in[out.same_as]
                                            : add(BufferKind::kBorder, out.bytes));
        all[w].read.push_back(out.exchange == Exchange::kNone
                                  ? flow.out.back()
                                  : add(BufferKind::kBorder, out.read_bytes));
      }
      flow.saved = add(BufferKind::kSaved, s.saved_bytes);
      flow.deferred = add(BufferKind::kMessage, s.deferred_bytes);
      flow.work = work;
    }
    for (size_t w = places.size(); w-- > 0;) {
      const SegmentShape& s = segment(places[w]);
      Flow& flow = all[w].flow;
      flow.grad_out.assign(s.outputs.size(), -1);
      flow.grad_in.assign(s.inputs.size(), -1);
      if (next[w] >= 0) {
        const auto& readers = segment(places[next[w]]).inputs;
        for (size_t i = 0; i < readers.size(); ++i) {
          if (readers[i].data || !readers[i].wanted) continue;
          const OutputShape& out = s.outputs[readers[i].index];
          int& grad = flow.grad_out[readers[i].index];
          grad = out.exchange == Exchange::kNone ? all[next[w]].flow.grad_in[i]
                 : out.exchange == Exchange::kGather
                     ? add(BufferKind::kBorder, out.bytes)
                     : add(BufferKind::kBorder, out.read_bytes * shape.columns);
        }
      }
      for (size_t j = 0; j < s.outputs.size(); ++j)
        if (s.outputs[j].same_as >= 0) flow.grad_in[s.outputs[j].same_as] = flow.grad_out[j];
      for (size_t i = 0; i < s.inputs.size(); ++i)
        if (s.inputs[i].wanted && flow.grad_in[i] < 0)
          flow.grad_in[i] = add(BufferKind::kBorder, s.inputs[i].grad_bytes);
    }
    flows.push_back(std::move(all));
  }

  Instruction instruction(Op op, size_t w, int micro, Part part, bool again = false) const {
    Instruction i;
    i.op = op;
    i.block = places[w].first;
    i.segment = places[w].second;
    i.lane = 0;
    i.micro = micro;
    i.part = part;
    i.again = again;
    i.flow = flows[micro][w].flow;
    const auto& from = options.moving && op == Op::kBackward ? moved : values;
    i.flow.parameters.push_back({i.block, from[i.block]});
    for (int unit : shape.blocks[i.block].writes_units)
      i.flow.parameters.push_back({unit, options.apart ? copies[unit] : from[unit]});
    if (op == Op::kForward) return i;
    i.flow.gradients.push_back({i.block, own_gradients[micro][i.block]});
    for (int unit : shape.blocks[i.block].writes_units)
      i.flow.gradients.push_back(
          {unit, (options.apart ? extra_gradients : own_gradients)[micro][unit]});
    return i;
  }

  // Outputs of all columns forward, or their gradients back; float32 throughout.
  void exchange(int layer, int s, int micro, bool forth) {
    const auto& outputs = shape.blocks[shape.block_at(layer, 0)].segments[s].outputs;
    const int columns = shape.columns;
    for (size_t j = 0; j < outputs.size(); ++j) {
      if (outputs[j].exchange == Exchange::kNone) continue;
      std::vector<float*> from, to;
      for (int c = 0; c < columns; ++c) {
        const size_t w = at(layer, s, c);
        const Buffers& mine = flows[micro][w];
        if (forth) {
          from.push_back(floats(mine.flow.out[j]));
          to.push_back(floats(mine.read[j]));
          continue;
        }
        const bool last_here = s == last_segment(layer);
        const size_t n = at(layer + last_here, last_here ? 0 : s + 1, c);
        const auto& readers = segment(places[n]).inputs;
        for (size_t i = 0; i < readers.size(); ++i)
          if (!readers[i].data && readers[i].index == static_cast<int>(j))
            from.push_back(floats(flows[micro][n].flow.grad_in[i]));
        to.push_back(floats(mine.flow.grad_out[j]));
      }
      const bool gathers = (outputs[j].exchange == Exchange::kGather) == forth;
      const int64_t whole = std::max(outputs[j].bytes, outputs[j].read_bytes) / 4,
                    part = whole / columns;
      for (int c = 0; c < columns; ++c)
        for (int64_t i = 0; i < (gathers ? whole : part); ++i) {
          if (gathers) {
            to[c][i] = from[i / part][i % part];
            continue;
          }
          to[c][i] = 0;
          for (int k = 0; k < columns; ++k) to[c][i] += from[k][c * part + i];
        }
    }
  }
};

}  // namespace tutti
