// What a rank's place in a mesh says of its instructions, wherever they run.
#pragma once

#include "model/segment.h"
#include "plan/make/mesh.h"

namespace tutti {

/// Model, shape and options must outlive it.
class MeshPlace {
 public:
  MeshPlace(const Model& model, const ModelShape& shape, const MeshOptions& options, int rank);

  const Coordinates& at() const { return at_; }
  const MeshPlaces& places() const { return places_; }
  bool is_home(int unit) const { return places_.home(shape_, unit) == Coordinates{0, at_.tensor, at_.pipeline}; }
  /// What this rank owns of a unit's sum.
  Range owned(int unit) const;
  /// Whether the forward leaves the loss that counts for its micro-batch.
  bool counts_loss(const Instruction& forward) const;
  bool is_end(const Instruction& forward) const;
  /// One rank of a replica speaks for it: the last stage's, of the first columns.
  bool reports() const { return ends() && at_.tensor == 0; }
  bool ends() const { return at_.pipeline == places_.stage.back(); }  ///< of the last stage
  bool owns(int lane) const;
  /// Whether it takes part in the lane's evaluation: where slices are gathered, all data ranks must do it together.
  bool computes(int lane) const { return (options_.zero == 3 && options_.mesh.shards > 1) || owns(lane); }
  /// Bytes of a column's part (gather), or of its partial sum (scatter).
  int64_t exchanged_bytes(const Instruction& exchange) const;
  /// ... and of each element of what a scatter leaves.
  int64_t scattered_element_bytes(const Instruction& exchange) const;
  /// The last dim of Model::output; 0 where the model names none.
  int64_t output_width() const;

 private:
  const OutputShape& output_of(const Instruction& exchange) const;

  const Model& model_;
  const ModelShape& shape_;
  const MeshOptions& options_;
  const Coordinates at_;
  const MeshPlaces places_;
};

}  // namespace tutti
