// Where the values of visits are stored on a rank of a mesh: borders (activations between segments)
// and their gradients, what is saved for backward, data. Buffers are named by what they are for:
// made when first asked for, then grown to the largest size that is asked for.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "plan/make/mesh_builder.h"
#include "plan/make/work.h"

namespace tutti {

/// Columns, segments, inputs and outputs are given by their numbers. `again`: for what is computed
/// a second time for backward.
class MeshBorders {
 public:
  /// Both must outlive it.
  MeshBorders(const MeshWork& work, MeshBuilder& program);

  int work() const { return work_buffer_; }  ///< temporaries; -1: none
  int data(int micro, int index);
  /// What a segment's forward saves for its backward.
  int saved(const LayerVisit& visit, int column, int segment, bool again);
  /// Kept from the input part of backward to the weight part.
  int deferred(const LayerVisit& visit, int column, int segment);
  /// Room for what arrives at a scatter.
  int arriving_sums(int64_t bytes);

  /// Where a segment finds one of its inputs.
  int read(const LayerVisit& visit, int column, int segment, int input, bool again);
  /// What a segment writes for one of its outputs; after_exchange(): what the next segment of the
  /// column reads as that output.
  int written(const LayerVisit& visit, int column, int segment, int output, bool again);
  int after_exchange(const LayerVisit& visit, int column, int segment, int output, bool again);
  /// What comes from the stage before: an output of its last segment.
  int received(const LayerVisit& visit, int column, int output);

  /// Whether the gradient of an input takes its memory.
  bool consumes(const LayerVisit& visit, int column, int segment, int input) const;
  /// The gradient that a segment's backward writes for one of its inputs; -1: it makes none.
  int grad_in(const LayerVisit& visit, int column, int segment, int input);
  /// The gradient of one of its outputs as its backward reads it; -1: none comes.
  int grad_out(const LayerVisit& visit, int column, int segment, int output);

  /// The segment that reads an output, in the same column.
  struct Consumer {
    bool exists = false;  ///< and wants its gradient
    bool here = false;    ///< on this rank
    LayerVisit visit;
    int segment = 0, input = -1;
  };
  Consumer consumer(const LayerVisit& visit, int segment, int output) const;

 private:
  template <typename... Args>
  int buffer(BufferKind kind, int64_t bytes, fmt::format_string<Args...> format, Args&&... args) {
    return program_.named(fmt::format(format, std::forward<Args>(args)...), kind, bytes);
  }
  bool transient(const LayerVisit& visit, int segment, bool again) const;
  std::string again_place(const LayerVisit& visit, bool again) const;
  int turn(int layer, int segment) const { return (first_segment_[layer] + segment) % 2; }

  const MeshWork& work_;
  const MeshHomes& homes_;
  const ModelShape& model_;
  MeshBuilder& program_;
  const bool by_segment_;           // gradients of inputs cannot just take turns
  std::vector<int> first_segment_;  // by layer: how many segments come before it
  int work_buffer_ = -1;
};

}  // namespace tutti
