// How micro-batches go through a model between the steps, for evaluation: on one rank, or on
// several ranks that each hold parts of the model.
#pragma once

#include <optional>
#include <vector>

#include "model/core/runner.h"
#include "model/core/segment.h"

namespace tutti {

/// The result of a micro-batch.
struct Evaluated {
  Loss loss;
  at::Tensor output;             ///< Model::output; undefined where the model names none
  std::vector<at::Tensor> data;  ///< the micro-batch, where the output is
};

class Placement {
 public:
  virtual ~Placement() = default;
  /// Whether this rank takes part in the lane's micro-batches, alone or with others.
  virtual bool computes(int lane) const = 0;
  /// Runs forward on a micro-batch in the host's memory. Every rank that computes the lane calls
  /// it, in the same order; one of them gets the result, and the others get nothing. It is valid
  /// until the next call.
  virtual std::optional<Evaluated> forward(const Pass& pass,
                                           const std::vector<at::Tensor>& data) = 0;
  /// The last dim of Model::output; 0 where the model names none.
  virtual int64_t output_width() = 0;
};

}  // namespace tutti
