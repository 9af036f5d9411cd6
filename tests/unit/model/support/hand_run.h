// Runs one micro-batch of a model by hand, without plan or runner: segment by segment, of a
// tensor-sliced model column by column, with backward in one part or two.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "model/core/device_tensor.h"
#include "model/core/wiring.h"
#include "unit/model/support/named_case.h"

namespace tutti::test {

struct HandOptions {
  bool split = false;  ///< all input parts, then all weight parts
  /// the gradient of an input overwrites the output's, where their shapes allow it
  bool in_place = false;
};

struct HandResult {
  std::vector<double> losses;  ///< of each column
  /// [block][parameter], of shared ones each user's own
  std::vector<std::vector<at::Tensor>> gradients;
  /// of all segments' wanted inputs, in backward's order
  std::vector<at::Tensor> grad_in;
  /// [segment of wire()][output], before the exchange
  std::vector<std::vector<at::Tensor>> outputs;
};

class HandRun {
 public:
  /// parameters[block][parameter]; of shared ones the owner's. It runs where the data is. `low`: of
  /// the matmuls.
  HandRun(const Model& model, std::vector<std::vector<at::Tensor>> parameters,
          std::vector<at::Tensor> data, Pass pass, at::ScalarType low = at::kFloat)
      : model_(model),
        parameters_(std::move(parameters)),
        low_(parameters_.size()),
        data_(std::move(data)),
        pass_(pass),
        segments_(wire(model)) {
    for (size_t b = 0; b < parameters_.size(); ++b)
      for (const at::Tensor& p : parameters_[b])
        if (low != at::kFloat) low_[b].push_back(p.to(low));
    for (size_t i = 0; i < segments_.size(); ++i) {
      const auto column = static_cast<size_t>(segments_[i].block % model.columns);
      columns_.resize(static_cast<size_t>(model.columns));
      columns_[column].push_back(i);
    }
  }

  HandResult run(HandOptions options = {}) const {
    std::vector<Slot> slots(segments_.size());
    HandResult result;
    result.gradients.resize(model_.blocks.size());
    for (size_t b = 0; b < model_.blocks.size(); ++b)
      for (const at::Tensor& p : parameters_[b])
        result.gradients[b].push_back(at::full_like(p, 77));
    const size_t length = columns_[0].size();
    for (size_t place = 0; place < length; ++place) {
      for (const auto& column : columns_) forward(column, place, slots);
      exchange_forward(place, slots);
    }
    for (const auto& column : columns_)
      result.losses.push_back(slots[column.back()].out.back().cpu().const_data_ptr<double>()[0]);
    for (const Slot& slot : slots) result.outputs.push_back(slot.out);
    for (size_t place = length; place-- > 0;) {
      for (const auto& column : columns_) backward(column[place], slots, options, result);
      if (place > 0) exchange_backward(place, slots);
    }
    if (!options.split) return result;
    const auto kept = overwrite_values();
    for (size_t i = 0; i < segments_.size(); ++i) weight_part(i, slots[i], result);
    for (size_t b = 0; b < parameters_.size(); ++b)
      for (size_t p = 0; p < parameters_[b].size(); ++p) alias(parameters_[b][p]).copy_(kept[b][p]);
    return result;
  }

 private:
  struct Slot {
    // read: out as the next segment reads it
    std::vector<at::Tensor> in, out, read, grad_out, grad_in;
    at::Tensor saved, deferred;
    std::shared_ptr<void> kept;
  };

  const Segment& segment(size_t i) const {
    return *model_.blocks[static_cast<size_t>(segments_[i].block)]
                .segments[static_cast<size_t>(segments_[i].segment)];
  }
  static std::span<std::byte> bytes(const at::Tensor& memory) {
    return {static_cast<std::byte*>(memory.data_ptr()), static_cast<size_t>(memory.numel())};
  }
  // As large as it was asked for, and never what a call before left there: all bits set are NaN.
  at::Tensor dirty(int64_t size) const {
    return at::full({size}, 255, data_[0].options().dtype(at::kByte));
  }

  Tensors values(size_t i) const { return parameters_[static_cast<size_t>(segments_[i].block)]; }
  // The same memory behind autograd's back.
  static at::Tensor alias(const at::Tensor& t) {
    return view_on(t.device(), t.data_ptr(), t.sizes(), t.scalar_type());
  }
  std::vector<std::vector<at::Tensor>> overwrite_values() const {
    std::vector<std::vector<at::Tensor>> kept(parameters_.size());
    for (size_t b = 0; b < parameters_.size(); ++b)
      for (const at::Tensor& p : parameters_[b]) kept[b].push_back(p.clone());
    for (const auto& list : parameters_)
      for (const at::Tensor& p : list) alias(p).fill_(std::nan(""));
    return kept;
  }

  template <class Call>
  void with_context(size_t i, Slot& slot, Tensors parameters, Tensors gradients, Call call) const {
    const SegmentWiring& w = segments_[i];
    Pass pass = pass_;
    pass.block = w.block;
    const at::Tensor work = dirty(segment(i).work_bytes());
    Context context{pass, parameters, gradients, bytes(slot.saved), bytes(work), slot.kept};
    context.low = low_[static_cast<size_t>(w.block)];
    if (slot.deferred.defined()) context.deferred = bytes(slot.deferred);
    call(context);
  }

  void forward(const std::vector<size_t>& column, size_t place, std::vector<Slot>& slots) const {
    const size_t i = column[place];
    const SegmentWiring& w = segments_[i];
    Slot& slot = slots[i];
    for (size_t k = 0; k < w.inputs.size(); ++k) {
      const auto index = static_cast<size_t>(w.sources[k].index);
      slot.in.push_back(w.sources[k].data
                            ? data_[index]
                            : slots[column[place - 1]].read[index].view(w.inputs[k].dims));
    }
    // What passes by is its input's memory, and so is its gradient.
    for (size_t k = 0; k < w.outputs.size(); ++k) {
      const Border& b = w.outputs[k];
      slot.out.push_back(w.same_as[k] >= 0 ? slot.in[static_cast<size_t>(w.same_as[k])]
                                           : at::empty(b.dims, data_[0].options().dtype(b.type)));
    }
    slot.saved = dirty(segment(i).saved_bytes());
    with_context(i, slot, values(i), {},
                 [&](Context& context) { segment(i).forward(context, slot.in, slot.out); });
  }

  void exchange_forward(size_t place, std::vector<Slot>& slots) const {
    for (size_t k = 0; k < segments_[columns_[0][place]].outputs.size(); ++k) {
      const Border& border = segments_[columns_[0][place]].outputs[k];
      std::vector<at::Tensor> parts;
      for (const auto& column : columns_) parts.push_back(slots[column[place]].out[k].flatten());
      ASSERT_NE(border.exchange, Exchange::kScatter);
      for (size_t c = 0; c < columns_.size(); ++c)
        slots[columns_[c][place]].read.push_back(
            border.exchange == Exchange::kGather ? at::cat(parts) : parts[c]);
    }
  }

  void backward(size_t i, std::vector<Slot>& slots, HandOptions options, HandResult& result) const {
    const SegmentWiring& w = segments_[i];
    Slot& slot = slots[i];
    slot.grad_out.resize(w.outputs.size());
    for (size_t k = 0; k < w.inputs.size(); ++k) {
      const bool shared = options.in_place && k == 0 && slot.grad_out[0].defined() &&
                          slot.grad_out[0].sizes() == slot.in[0].sizes();
      const auto passed = std::find(w.same_as.begin(), w.same_as.end(), static_cast<int>(k));
      if (!w.wanted[k]) {
        slot.grad_in.emplace_back();
      } else if (passed != w.same_as.end()) {
        slot.grad_in.push_back(slot.grad_out[static_cast<size_t>(passed - w.same_as.begin())]);
      } else if (shared) {
        slot.grad_in.push_back(slot.grad_out[0]);
      } else {
        slot.grad_in.push_back(at::full_like(slot.in[k], 77));
      }
    }
    if (options.split) {
      EXPECT_TRUE(segment(i).splits()) << segment(i).name();
      slot.deferred = dirty(segment(i).deferred_bytes());
      with_context(i, slot, values(i), {}, [&](Context& context) {
        segment(i).backward_input(context, slot.in, slot.out, slot.grad_out, slot.grad_in);
      });
    } else {
      with_context(i, slot, values(i), result.gradients[static_cast<size_t>(w.block)],
                   [&](Context& context) {
                     segment(i).backward(context, slot.in, slot.out, slot.grad_out, slot.grad_in);
                   });
    }
    for (const at::Tensor& grad : slot.grad_in)
      if (grad.defined()) result.grad_in.push_back(grad.clone());
    for (size_t k = 0; k < slot.grad_out.size(); ++k)  // it is no longer there
      if (slot.grad_out[k].defined() && w.same_as[k] < 0 &&
          !(options.in_place && k == 0 && !slot.grad_in.empty() &&
            slot.grad_in[0].is_same(slot.grad_out[0])))
        slot.grad_out[k].fill_(std::nan(""));
    if (w.before >= 0 && columns_.size() == 1) hand_back(i, slots);
  }

  void hand_back(size_t i, std::vector<Slot>& slots) const {
    const SegmentWiring& w = segments_[i];
    Slot& before = slots[static_cast<size_t>(w.before)];
    before.grad_out.resize(before.out.size());
    for (size_t k = 0; k < w.inputs.size(); ++k)
      if (w.wanted[k])
        before.grad_out[static_cast<size_t>(w.sources[k].index)] =
            slots[i].grad_in[k].view(before.out[static_cast<size_t>(w.sources[k].index)].sizes());
  }

  // The gradient of what was gathered is summed over the columns' tree, of which each takes its
  // part.
  void exchange_backward(size_t place, std::vector<Slot>& slots) const {
    if (columns_.size() == 1) return;
    for (size_t k = 0; k < segments_[columns_[0][place]].inputs.size(); ++k) {
      const SegmentWiring& w = segments_[columns_[0][place]];
      if (!w.wanted[k]) continue;
      const auto index = static_cast<size_t>(w.sources[k].index);
      const bool gathered =
          segments_[columns_[0][place - 1]].outputs[index].exchange == Exchange::kGather;
      std::vector<at::Tensor> all;
      for (const auto& column : columns_) all.push_back(slots[column[place]].grad_in[k].flatten());
      const at::Tensor sum = gathered ? folded(all) : at::Tensor();
      for (size_t c = 0; c < columns_.size(); ++c) {
        Slot& before = slots[columns_[c][place - 1]];
        before.grad_out.resize(before.out.size());
        const at::Tensor mine =
            gathered ? sum.chunk(static_cast<int64_t>(columns_.size()))[c].clone() : all[c];
        before.grad_out[index] = mine.view(before.out[index].sizes());
      }
    }
  }

  static at::Tensor folded(std::span<const at::Tensor> parts) {
    if (parts.size() == 1) return parts[0];
    size_t left = 1;
    while (left * 2 < parts.size()) left *= 2;
    return folded(parts.first(left)) + folded(parts.subspan(left));
  }

  void weight_part(size_t i, Slot& slot, HandResult& result) const {
    // where values are gathered they are gone by now
    const std::vector<at::Tensor> none(values(i).size());
    with_context(i, slot, none, result.gradients[static_cast<size_t>(segments_[i].block)],
                 [&](Context& context) { segment(i).backward_weight(context, slot.in, slot.out); });
  }

  const Model& model_;
  std::vector<std::vector<at::Tensor>> parameters_, low_;
  std::vector<at::Tensor> data_;
  Pass pass_;
  std::vector<SegmentWiring> segments_;
  std::vector<std::vector<size_t>> columns_;  // places in segments_
};

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.cpu(), y = b.cpu();
  return x.sizes() == y.sizes() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

/// Every block's parameters away from zeros and ones; of shared ones the owner's.
inline std::vector<std::vector<at::Tensor>> waves(const Model& model, at::Device device) {
  std::vector<std::vector<at::Tensor>> all;
  const auto owner = owners(model);
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    all.emplace_back();
    for (size_t i = 0; i < owner[b].size(); ++i) {
      const Parameter& p = model.blocks[b].parameters[i];
      if (!p.shared_with.empty()) {
        const Owner& o = owner[b][i];
        all[b].push_back(all[static_cast<size_t>(o.block)][static_cast<size_t>(o.parameter)]);
        continue;
      }
      const double phase = static_cast<double>(b) + 0.1 * static_cast<double>(i);
      at::Tensor values = named_case::wave(p.dims, phase, 0.3);
      all[b].push_back((p.dims.size() > 1 ? values : values.add(0.8)).to(device));
    }
  }
  return all;
}

/// Backward in two parts, in place or not, against backward in one.
inline void expect_same_parts(const HandRun& run, const Model& model) {
  const HandResult whole = run.run();
  for (const HandOptions options : {HandOptions{true, false}, {false, true}, {true, true}}) {
    const HandResult other = run.run(options);
    ASSERT_EQ(whole.grad_in.size(), other.grad_in.size());
    for (size_t i = 0; i < whole.grad_in.size(); ++i)
      EXPECT_TRUE(same_bits(whole.grad_in[i], other.grad_in[i]))
          << "input's gradient " << i << " from the end";
    for (size_t b = 0; b < model.blocks.size(); ++b)
      for (size_t p = 0; p < model.blocks[b].parameters.size(); ++p) {
        const std::string name = model.blocks[b].name + "." + model.blocks[b].parameters[p].name;
        const at::Tensor& gradient = other.gradients[b][p];
        EXPECT_TRUE(same_bits(whole.gradients[b][p], gradient)) << name;
        EXPECT_FALSE(gradient.eq(77).any().item<bool>()) << name << " was not written whole";
        EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << name;
      }
  }
}

}  // namespace tutti::test
