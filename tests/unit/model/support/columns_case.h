// A tensor-sliced model with its memory and one micro-batch, run by hand: segment by segment over
// all columns, with the exchanges between them as plain loops.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "model/core/runner.h"
#include "model/core/segment.h"
#include "model/core/wiring.h"

namespace tutti::test {

class ColumnsCase {
 public:
  explicit ColumnsCase(Model given)
      : model(std::move(given)), shape(describe(model)), wiring(wire(model)) {
    at::set_num_threads(1);
    for (const BlockShape& block : shape.blocks) {
      values.push_back(at::zeros({block.unit_size}, at::kFloat));
      gradients.push_back(at::zeros({block.gradient_size}, at::kFloat));
    }
    slots.resize(wiring.size());
    for (size_t i = 0; i < wiring.size(); ++i) {
      const Segment& s = segment(i);
      const auto bytes = [](int64_t size) { return at::empty({size}, at::kByte); };
      slots[i].saved = bytes(s.saved_bytes());
      slots[i].work = bytes(s.work_bytes());
      slots[i].deferred = bytes(s.deferred_bytes());
    }
  }

  Loss forward() {
    parameters_.clear();
    each_segment(false, [&](const std::vector<size_t>& columns) {
      for (const size_t i : columns) {
        Slot& slot = slots[i];
        slot.in = inputs(i);
        slot.out.clear();
        for (size_t o = 0; o < wiring[i].outputs.size(); ++o) {
          const int same = wiring[i].same_as[o];
          slot.out.push_back(same >= 0
                                 ? slot.in[same]
                                 : unset(wiring[i].outputs[o].dims, wiring[i].outputs[o].type));
        }
        Context context = this->context(i, {});
        segment(i).forward(context, slot.in, slot.out);
      }
      for (size_t o = 0; o < wiring[columns[0]].outputs.size(); ++o) exchange(columns, o);
    });
    const double* loss = slots[loss_of(0)].out.back().const_data_ptr<double>();
    for (int c = 1; c < model.columns; ++c) {
      const double* other = slots[loss_of(c)].out.back().const_data_ptr<double>();
      EXPECT_EQ(other[0], loss[0]) << "column " << c;
      EXPECT_EQ(other[1], loss[1]) << "column " << c;
    }
    return {loss[0], loss[1]};
  }

  /// `parts`: all input parts first, then the weight parts.
  void backward(bool parts = false) {
    for (at::Tensor& g : gradients) g.fill_(77);  // what is not written shows
    each_segment(true, [&](const std::vector<size_t>& columns) {
      for (const size_t i : columns) take_gradients(columns, i);
      for (const size_t i : columns) {
        Slot& slot = slots[i];
        const auto of_block = block_gradients(wiring[i].block);
        Context context = this->context(i, of_block);
        if (parts) {
          context.gradients = {};
          context.deferred = bytes_of(slot.deferred);
          segment(i).backward_input(context, slot.in, slot.out, slot.grad_out, slot.grad_in);
        } else {
          segment(i).backward(context, slot.in, slot.out, slot.grad_out, slot.grad_in);
        }
      }
    });
    if (!parts) return;
    for (size_t i = 0; i < wiring.size(); ++i) {
      const auto of_block = block_gradients(wiring[i].block);
      Context context = this->context(i, of_block);
      context.deferred = bytes_of(slots[i].deferred);
      segment(i).backward_weight(context, slots[i].in, slots[i].out);
    }
  }

  /// A parameter's gradient with those of its further users, which are added in block order.
  at::Tensor total_gradient(int block, const ParameterShape& p) const {
    at::Tensor sum = gradients[block].narrow(0, p.offset, p.size).clone();
    for (const int64_t extra : p.extra_gradients) sum += gradients[block].narrow(0, extra, p.size);
    return sum.view(p.dims);
  }
  at::Tensor value(int block, const ParameterShape& p) const {
    return values[block].narrow(0, p.offset, p.size).view(p.dims);
  }

  Model model;
  ModelShape shape;
  std::vector<SegmentWiring> wiring;
  std::vector<at::Tensor> values, gradients, data;
  Pass pass{.seed = 5, .step = 12, .lane = 0, .micro = 0, .first_sample = 40};

 private:
  struct Slot {
    std::vector<at::Tensor> in, out, read, grad_out, grad_in;
    at::Tensor saved, work, deferred;
    std::shared_ptr<void> kept;
  };

  const Segment& segment(size_t i) const {
    return *model.blocks[wiring[i].block].segments[wiring[i].segment];
  }
  size_t loss_of(int column) const {
    size_t at = 0;
    for (size_t i = 0; i < wiring.size(); ++i)
      if (wiring[i].next < 0 && wiring[i].block % model.columns == column) at = i;
    return at;
  }
  static std::span<std::byte> bytes_of(const at::Tensor& tensor) {
    return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<size_t>(tensor.numel())};
  }
  /// NaN, so that what is read before it is written shows.
  static at::Tensor unset(const std::vector<int64_t>& dims, at::ScalarType type) {
    if (!c10::isFloatingType(type)) return at::zeros(dims, type);
    return at::full(dims, std::numeric_limits<double>::quiet_NaN(), type);
  }

  /// Calls f with the places of one segment in all columns, in order or in reverse.
  template <class F>
  void each_segment(bool reverse, F&& f) {
    std::vector<std::vector<size_t>> all;
    for (size_t i = 0; i < wiring.size(); ++i) {
      if (wiring[i].block % model.columns != 0) continue;
      auto& columns = all.emplace_back();
      for (size_t j = i; j < wiring.size(); ++j)
        if (wiring[j].block / model.columns == wiring[i].block / model.columns &&
            wiring[j].segment == wiring[i].segment)
          columns.push_back(j);
    }
    if (reverse) std::reverse(all.begin(), all.end());
    for (const auto& columns : all) f(columns);
  }

  std::vector<at::Tensor> inputs(size_t i) const {
    std::vector<at::Tensor> in;
    for (size_t k = 0; k < wiring[i].inputs.size(); ++k) {
      const Source& source = wiring[i].sources[k];
      in.push_back(source.data
                       ? data[source.index]
                       : slots[wiring[i].before].read[source.index].view(wiring[i].inputs[k].dims));
    }
    return in;
  }

  static at::Tensor gathered(const std::vector<at::Tensor>& parts) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& part : parts) flat.push_back(part.reshape({-1}));
    return at::cat(flat);
  }
  /// Over the fixed tree: the left part is the largest power of two below their number.
  static at::Tensor summed(const std::vector<at::Tensor>& parts, size_t begin, size_t end) {
    if (end - begin == 1) return parts[begin].reshape({-1});
    size_t left = 1;
    while (2 * left < end - begin) left *= 2;
    return summed(parts, begin, begin + left) + summed(parts, begin + left, end);
  }
  at::Tensor scattered(const std::vector<at::Tensor>& parts, size_t column) const {
    const at::Tensor sum = summed(parts, 0, parts.size());
    const int64_t size = sum.numel() / model.columns;
    return sum.narrow(0, static_cast<int64_t>(column) * size, size).clone();
  }

  void exchange(const std::vector<size_t>& columns, size_t output) {
    std::vector<at::Tensor> written;
    for (const size_t i : columns) written.push_back(slots[i].out[output]);
    const Exchange kind = wiring[columns[0]].outputs[output].exchange;
    for (size_t c = 0; c < columns.size(); ++c) {
      auto& read = slots[columns[c]].read;
      read.resize(wiring[columns[c]].outputs.size());
      read[output] = kind == Exchange::kNone     ? written[c]
                     : kind == Exchange::kGather ? gathered(written)
                                                 : scattered(written, c);
    }
  }

  void take_gradients(const std::vector<size_t>& columns, size_t i) {
    const SegmentWiring& w = wiring[i];
    Slot& slot = slots[i];
    slot.grad_out.assign(w.outputs.size(), at::Tensor());
    const size_t column = static_cast<size_t>(w.block % model.columns);
    for (size_t o = 0; o < w.outputs.size(); ++o) {
      if (w.readers[o] < 0 || !floating(w.outputs[o])) continue;
      std::vector<at::Tensor> of_columns;
      for (const size_t j : columns)
        of_columns.push_back(slots[wiring[j].next].grad_in[w.readers[o]]);
      const Exchange kind = w.outputs[o].exchange;
      slot.grad_out[o] = kind == Exchange::kNone ? of_columns[column]
                         : kind == Exchange::kGather
                             ? scattered(of_columns, column).view(w.outputs[o].dims)
                             : gathered(of_columns).view(w.outputs[o].dims);
    }
    slot.grad_in.assign(w.inputs.size(), at::Tensor());
    for (size_t k = 0; k < w.inputs.size(); ++k)
      if (w.wanted[k]) slot.grad_in[k] = unset(w.inputs[k].dims, w.grad_types[k]);
    for (size_t o = 0; o < w.outputs.size(); ++o)
      if (w.same_as[o] >= 0) slot.grad_in[w.same_as[o]] = slot.grad_out[o];
  }

  at::Tensor parameter(const Owner& owner, const std::vector<at::Tensor>& units,
                       bool gradient) const {
    const ParameterShape& p = shape.blocks[owner.block].parameters[owner.own_index];
    const int64_t offset = gradient && owner.extra >= 0 ? p.extra_gradients[owner.extra] : p.offset;
    return units[owner.block].narrow(0, offset, p.size).view(p.dims);
  }
  std::vector<at::Tensor> block_gradients(int block) const {
    std::vector<at::Tensor> all;
    for (const Owner& owner : owners_[block]) all.push_back(parameter(owner, gradients, true));
    return all;
  }
  Context context(size_t i, Tensors of_block) {
    auto& kept_parameters = parameters_.emplace_back();
    for (const Owner& owner : owners_[wiring[i].block])
      kept_parameters.push_back(parameter(owner, values, false));
    Slot& slot = slots[i];
    Context context{pass,     kept_parameters, of_block, bytes_of(slot.saved), bytes_of(slot.work),
                    slot.kept};
    context.pass.block = wiring[i].block;
    return context;
  }

  std::vector<Slot> slots;
  std::vector<std::vector<Owner>> owners_ = owners(model);
  std::list<std::vector<at::Tensor>> parameters_;  // of the contexts that were handed out
};

}  // namespace tutti::test
