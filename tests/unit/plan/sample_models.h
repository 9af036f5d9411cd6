// Small model shapes for tests of plans.
#pragma once

#include <string>

#include "plan/ir/shape.h"
#include "plan/make/ddp.h"

namespace tutti::test {

/// `blocks` blocks of one or two segments and growing units; block 3 has no parameters. `tied`: the last block also
/// uses a parameter of block 0 (and, when there are five, has none of its own).
inline ModelShape sample_model(int blocks, bool tied) {
  ModelShape model;
  for (int b = 0; b < blocks; ++b) {
    BlockShape block;
    block.name = "block" + std::to_string(b);
    const bool bare = (b == 3 && blocks > 3) || (tied && b == 4);
    if (!bare) {
      const int64_t size = 20 + 7 * b;
      block.parameters.push_back({block.name + ".weight", {size}, 0, size, {}});
      block.unit_size = align_up(size, kAlign);
      block.gradient_size = block.unit_size;
    }
    const int segments = 1 + b % 2;
    for (int s = 0; s < segments; ++s) {
      SegmentShape segment;
      segment.name = "s" + std::to_string(s);
      segment.saved_bytes = 1000 + b, segment.work_bytes = 300 - b, segment.border_bytes = 64 * (b + 1);
      segment.flops = 1e3;
      block.segments.push_back(std::move(segment));
    }
    model.blocks.push_back(block);
  }
  if (tied && blocks > 1) {
    BlockShape& owner = model.blocks[0];
    owner.parameters[0].extra_gradients = {owner.unit_size};
    owner.gradient_size = 2 * owner.unit_size;
    model.blocks.back().writes_units = {0};
  }
  return model;
}

}  // namespace tutti::test
