// What the plan knows of a model: names, sizes and costs. Made by model/describe.h; torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "grid/grid.h"

namespace tutti {

/// Of a parameter: trained, or a buffer with the rule that joins the micro-batches' proposals (model/segment.h).
enum class Role { kTrained, kMeanBuffer, kSumBuffer };

struct ParameterShape {
  std::string name;  ///< "blocks.0.attention.qkv.weight"
  std::vector<int64_t> dims;
  int64_t offset = 0;  ///< floats from the unit's start, a multiple of kAlign
  int64_t size = 0;    ///< floats
  /// Shared parameters (tied embeddings): offsets, behind the unit's own floats, of the gradients of further users in
  /// block order. Empty for most.
  std::vector<int64_t> extra_gradients;
  Role role = Role::kTrained;
};

struct SegmentShape {
  std::string name;
  int64_t saved_bytes = 0;   ///< kept from forward to backward, per micro-batch
  int64_t work_bytes = 0;    ///< peak of temporaries inside forward or backward
  int64_t border_bytes = 0;  ///< its outputs
  double flops = 0;          ///< forward, per micro-batch; backward counts twice
};

/// One block and its unit.
struct BlockShape {
  std::string name;
  std::vector<ParameterShape> parameters;
  int64_t unit_size = 0;      ///< floats of parameters with padding
  int64_t gradient_size = 0;  ///< floats of gradients: unit_size + the extra gradients of shared parameters
  std::vector<SegmentShape> segments;
  /// Earlier blocks whose shared parameters this one uses (tied embeddings): its backward also writes into their
  /// gradients (ParameterShape::extra_gradients). Ascending. They come earlier in the model, so an owner's unit is
  /// complete when its own backward is.
  std::vector<int> writes_units;
};

struct ModelShape {
  std::vector<BlockShape> blocks;
  int64_t parameter_count() const;  ///< without padding and buffers; a shared parameter counts once
  double flops() const;             ///< forward and backward of one micro-batch
  /// Whether some block's backward writes into the gradient of block `unit` besides its own.
  bool has_foreign_writers(int unit) const;
};

}  // namespace tutti
