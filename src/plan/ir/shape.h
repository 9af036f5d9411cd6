// What the plan knows of a model: names, sizes and costs. Made by describe()
// (model/core/segment.h); torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "grid/grid.h"

namespace tutti {

/// The role of a parameter: it is trained, or it is a buffer, with the rule that joins the
/// micro-batches' proposals (model/core/segment.h).
enum class Role { kTrained, kMeanBuffer, kSumBuffer };

/// How the commit of a step changes a value of the state. Before the vote no value has changed.
enum class Commit : uint8_t {
  kInPlace,  ///< Update reads it and writes it where it is: parameters, an optimizer's slots, sums
  /// The step has made the next value elsewhere, and it takes the old one's place: BatchNorm's
  /// statistics.
  kSwapped,
};
inline Commit commit_of(Role role) {
  return role == Role::kMeanBuffer ? Commit::kSwapped : Commit::kInPlace;
}

struct ParameterShape {
  std::string name;  ///< "blocks.0.attention.qkv.weight"
  std::vector<int64_t> dims;
  int64_t offset = 0;  ///< floats from the unit's start, a multiple of kAlign
  int64_t size = 0;    ///< floats
  /// Shared parameters (tied embeddings): offsets, after the unit's own floats, of the gradients of
  /// further users, in block order. Empty for most.
  std::vector<int64_t> extra_gradients;
  Role role = Role::kTrained;
};

/// What happens to a segment's output between the columns of a model before the next segment reads
/// it: an all-gather or a reduce-scatter. Backward does the other of the two to its gradient. With
/// S columns:
enum class Exchange : uint8_t {
  kNone,    ///< every column reads what it wrote
  kGather,  ///< every column reads all columns' outputs, one after the other
  /// Outputs are float32 partial sums; column c reads the c-th of S equal parts of their sum
  /// over the tree.
  kScatter,
};

/// A border: an activation that a segment puts out and the next one reads, per micro-batch.
struct OutputShape {
  std::string name;
  int64_t bytes = 0;       ///< as the segment writes it
  int64_t read_bytes = 0;  ///< as the next one reads it: after the exchange
  Exchange exchange = Exchange::kNone;
  bool floating = true;
  /// Partial sums are float32 and are rounded once, to what is read.
  int64_t element_bytes = 4, read_element_bytes = 4;
  /// The input whose memory this output is, passed on untouched; -1: it has memory of its own.
  int same_as = -1;
};

/// A tensor that a segment reads: output `index` of the segment before it in its column, or tensor
/// `index` of the data.
struct InputShape {
  bool data = false;
  int index = -1;
  bool wanted = false;     ///< backward makes its gradient
  int64_t grad_bytes = 0;  ///< of that gradient
  bool consumed = false;   ///< its gradient may take its memory (Segment::consumes)
};

struct SegmentShape {
  std::string name;
  std::vector<InputShape> inputs;
  std::vector<OutputShape> outputs;
  int64_t deferred_bytes = 0;  ///< kept from the input part of backward to the weight part
  bool splits = false;         ///< backward runs in two parts
  bool attention = false;      ///< recompute = "selective" computes it again
  int64_t saved_bytes = 0;     ///< kept from forward to backward, per micro-batch
  int64_t work_bytes = 0;      ///< peak of temporaries inside forward or backward
  int64_t border_bytes = 0;    ///< its outputs
  double flops = 0;            ///< forward, per micro-batch; backward counts twice
};

/// A parameter of an earlier block that a block uses.
struct Share {
  int unit = -1;       ///< its owner
  int parameter = -1;  ///< index in the owner's parameters
  int extra = -1;      ///< index in ParameterShape::extra_gradients
  bool operator==(const Share&) const = default;
};

/// One block and its unit, which is all of the block's parameters in one flat buffer
/// (FSDP's flat parameter).
struct BlockShape {
  std::string name;
  int layer = 0;   ///< blocks of one layer run alongside each other, one per column
  int column = 0;  ///< the column that it belongs to (tensor parallelism)
  std::vector<Share> shares;
  std::vector<ParameterShape> parameters;
  int64_t unit_size = 0;  ///< floats of parameters with padding
  /// Floats of gradients: unit_size + the extra gradients of shared parameters.
  int64_t gradient_size = 0;
  std::vector<SegmentShape> segments;
  /// Earlier blocks whose shared parameters this one uses (tied embeddings): its backward also
  /// writes into their gradients (ParameterShape::extra_gradients). Ascending. They come earlier in
  /// the model, so an owner's gradient is complete when its own backward is done.
  std::vector<int> writes_units;
};

struct ModelShape {
  std::vector<BlockShape> blocks;     ///< layer by layer, columns side by side
  int columns = 1;                    ///< train.tensor_slices
  std::vector<int64_t> data_bytes{};  ///< of a micro-batch's tensors
  int layers() const { return static_cast<int>(blocks.size()) / columns; }
  int block_at(int layer, int column) const { return layer * columns + column; }
  int64_t parameter_count() const;  ///< without padding and buffers; a shared parameter counts once
  double flops() const;             ///< forward and backward of one micro-batch
};

}  // namespace tutti
