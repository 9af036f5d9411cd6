// A whole model on one rank, outside of a job's steps: samplers, teachers and tests run
// micro-batches through it. It is the plan of one rank, which PlanRunner runs as it does every
// other.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/accounts.h"
#include "model/core/segment.h"

namespace tutti {

struct Loss {
  double sum = 0, count = 0;
};

/// Where a runner's memory is and in which precision its matmuls read weights.
struct RunnerOptions {
  at::Device device = at::kCPU;
  MemorySource* memory = nullptr;  ///< of ModelRunner: borders, saved and work; null: the host's
  /// of ModelRunner, by unit: the copies of its parameters; empty: float32
  std::vector<void*> low;
  at::ScalarType precision = at::kFloat;
  const double* loss_scale = nullptr;  ///< Context's
  /// Of ModelRunner: gradients take the memory of inputs that segments consume. Then these borders
  /// hold no values after a forward in training.
  bool consume = false;
  bool training = true;  ///< of ModelRunner; false: forward alone
  /// Of PlanRunner: where the copies, in `precision`, of a parameter buffer's values are, one after
  /// the other as they are there. Empty: precision is float32.
  std::function<void*(int buffer)> low_memory = {};
};

/// One micro-batch is in work at a time: forward, then (in training) backward, before the next
/// begins. Not thread-safe.
class ModelRunner {
 public:
  /// `units[b]` are the values of block b's unit (BlockShape::unit_size floats, 64-byte aligned;
  /// null where it has none); they, `model` and `accounts` must outlive the runner. Borders, saved
  /// and work memory are taken here.
  ModelRunner(const Model& model, const ModelShape& shape, std::span<float* const> units,
              Accounts& accounts, const RunnerOptions& options = {});
  ~ModelRunner();

  /// `data` as Model::data says, the same tensors until the micro-batch's backward ends; where they
  /// are in the host's memory Model::check sees them first.
  void forward_all(const Pass& pass, Tensors data);
  /// `gradients[b]` is where block b's gradient goes (BlockShape::gradient_size floats). What is
  /// written is whole: nothing is added.
  void backward_all(const Pass& pass, Tensors data, std::span<float* const> gradients);

  /// Of the last forward. On a device this waits for it.
  Loss loss() const;
  /// The last output of that name on the way to the loss ("logits"); valid until the next forward.
  /// Throws Error if there is none.
  at::Tensor border(const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
