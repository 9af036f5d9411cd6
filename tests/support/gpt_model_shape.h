// The shape of a GPT of any size, without the GPT: for plans of models that no test could hold.
//
//   a layer, per column: norm1 (its output is gathered), attention (partial sums, scattered),
//   norm2, mlp, join; columns
//   hold S-ths of the sequence between the layers, and of heads and hidden inside them
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "plan/ir/shape.h"

namespace tutti::test {

struct GptSizes {
  int layers = 2;
  int64_t width = 64, heads = 4, kv_heads = 4, hidden = 256, vocab = 256, length = 64, batch = 1;
  bool gated = false;
  int columns = 1;
};

inline ModelShape gpt_model_shape(const GptSizes& sizes) {
  const int64_t rows = sizes.batch * sizes.length, width = sizes.width, columns = sizes.columns;
  const int64_t kv = width / sizes.heads * sizes.kv_heads, qkv = (width + 2 * kv) / columns;
  const int64_t hidden = sizes.hidden / columns, fc1 = hidden * (sizes.gated ? 2 : 1);
  const int64_t stream = rows / columns * width * 4, whole = rows * width * 4;
  const bool split = columns > 1;
  ModelShape model;
  model.columns = sizes.columns;
  model.data_bytes = {rows * 8, rows * 8};

  const auto add_parameter = [](BlockShape& block, const std::string& name,
                                std::vector<int64_t> dims) {
    int64_t size = 1;
    for (int64_t d : dims) size *= d;
    block.parameters.push_back(
        {block.name + "." + name, std::move(dims), block.unit_size, size, {}});
    block.unit_size = align_up(block.unit_size + size, kAlign);
    block.gradient_size = block.unit_size;
  };
  const auto add_segment = [](BlockShape& block, const std::string& name,
                              std::vector<InputShape> inputs, std::vector<OutputShape> outputs,
                              int64_t saved, double flops) {
    SegmentShape s;
    s.name = name, s.inputs = std::move(inputs), s.outputs = std::move(outputs);
    s.saved_bytes = saved, s.flops = flops, s.splits = true, s.attention = name == "attention";
    for (const OutputShape& o : s.outputs) s.border_bytes += o.bytes;
    block.segments.push_back(std::move(s));
  };
  const auto x = [&](int index) { return InputShape{false, index, true, stream}; };
  const auto kept = [&] {
    return OutputShape{"x", stream, stream, Exchange::kNone, true, 4, 4, 0};
  };
  const auto fresh = [&] { return OutputShape{"x", stream, stream}; };
  const auto normal = [&] {
    return OutputShape{"normal", stream, whole, split ? Exchange::kGather : Exchange::kNone};
  };
  const auto partial = [&] {
    return OutputShape{"partial", whole, stream, split ? Exchange::kScatter : Exchange::kNone};
  };
  const InputShape read_normal{false, 1, true, whole};

  for (int layer = -1; layer <= sizes.layers; ++layer) {
    for (int column = 0; column < sizes.columns; ++column) {
      BlockShape block;
      block.layer = layer + 1, block.column = column;
      const std::string slice = split ? fmt::format(".slice{}", column) : "";
      if (layer < 0) {
        block.name = "embed" + slice;
        add_parameter(block, "token", {sizes.vocab / columns, width});
        add_segment(block, "embed", {{true, 0, false, 0}}, {partial()}, 0, 0);
        add_segment(block, "join", {x(0)}, {fresh()}, 0, 0);
      } else if (layer == sizes.layers) {
        block.name = "head" + slice;
        add_parameter(block, "weight", {sizes.vocab / columns, width});
        const int64_t logits = rows * (sizes.vocab / columns) * 4;
        add_segment(block, "norm", {x(0)}, {normal()}, stream, 0);
        add_segment(block, "head", {{false, 0, true, whole}}, {{"logits", logits, logits}}, 0,
                    2.0 * static_cast<double>(rows * width * (sizes.vocab / columns)));
        add_segment(block, "loss", {{false, 0, true, logits}, {true, 1, false, 0}},
                    {{"loss", 16, 16, Exchange::kNone, true, 8, 8}}, 0, 0);
      } else {
        block.name = fmt::format("blocks.{}{}", layer, slice);
        add_parameter(block, "qkv", {qkv, width});
        add_parameter(block, "proj", {width, width / columns});
        add_parameter(block, "fc1", {fc1, width});
        add_parameter(block, "fc2", {width, hidden});
        add_segment(block, "norm1", {x(0)}, {kept(), normal()}, stream, 0);
        const double scores =
            4.0 * static_cast<double>(rows * sizes.length) * static_cast<double>(width / columns);
        add_segment(
            block, "attention", {x(0), read_normal}, {kept(), partial()},
            rows * (qkv + width / columns) * 4,
            2.0 * static_cast<double>(rows * width) * static_cast<double>(qkv + width / columns) +
                scores);
        add_segment(block, "norm2", {x(0), x(1)}, {fresh(), normal()}, stream, 0);
        add_segment(block, "mlp", {x(0), read_normal}, {kept(), partial()},
                    rows * (fc1 + hidden) * 4,
                    2.0 * static_cast<double>(rows * width) * static_cast<double>(fc1 + hidden));
        add_segment(block, "join", {x(0), x(1)}, {fresh()}, 0, 0);
      }
      model.blocks.push_back(std::move(block));
    }
  }
  return model;
}

/// The 70-billion-parameter one.
inline GptSizes gpt_70b(int columns) {
  return {.layers = 80,
          .width = 8192,
          .heads = 64,
          .kv_heads = 8,
          .hidden = 28672,
          .vocab = 32000,
          .length = 4096,
          .batch = 1,
          .gated = true,
          .columns = columns};
}

}  // namespace tutti::test
