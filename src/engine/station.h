// What a rank's place in its plan says about its instructions, wherever they run.
#pragma once

#include "model/core/segment.h"
#include "plan/ir/plans.h"

namespace tutti {

/// Model, shape and plans must outlive it.
class Station {
 public:
  Station(const Model& model, const ModelShape& shape, const Plans& plans, int rank);

  const Coordinates& at() const { return plan_.places[rank_].at; }
  /// The columns of a tensor coordinate.
  Range columns(int tensor) const { return plan_.places[plan_.mesh.rank({0, tensor, 0})].columns; }
  /// The rank at that tensor coordinate, with this rank's other coordinates.
  int rank_beside(int tensor) const { return plan_.mesh.rank({at().data, tensor, at().pipeline}); }
  int tensor_ranks() const { return plan_.mesh.tensor; }
  /// Whether the forward leaves the loss that counts for its micro-batch.
  bool counts_loss(const Instruction& forward) const;
  /// Whether it is the forward of a model's last segment.
  bool is_end(const Instruction& forward) const;
  /// One rank of a replica speaks for it: the one of the last stage that has the first columns.
  bool reports() const { return ends() && at().tensor == 0; }
  /// Whether it is in the last stage.
  bool ends() const { return at().pipeline == plan_.homes.back().pipeline; }
  bool owns(int lane) const;
  /// Whether it takes part in the evaluation of the lane: where slices are gathered, all data ranks
  /// must do so together.
  bool computes(int lane) const { return gathers_ || owns(lane); }
  /// Bytes of a column's part (gather) or of its partial sum (scatter).
  int64_t exchanged_bytes(const Instruction& exchange) const;
  /// Bytes of each element of what a scatter leaves.
  int64_t scattered_element_bytes(const Instruction& exchange) const;
  /// The last dim of Model::output; 0 where the model names none.
  int64_t output_width() const;

 private:
  const OutputShape& output_of(const Instruction& exchange) const;

  const Model& model_;
  const ModelShape& shape_;
  const Plan& plan_;
  const int rank_;
  bool gathers_ = false;
};

}  // namespace tutti
