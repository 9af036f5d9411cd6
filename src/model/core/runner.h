// A whole model on one rank, outside of a job's steps: samplers, teachers and tests run
// micro-batches through it. It makes the plan of a single rank and lets PlanRunner run that as it
// runs every other.
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

/// The sum of the losses over valid targets, and their count.
struct Loss {
  double sum = 0, count = 0;
};

/// Where a runner's memory is and in which precision its matmuls read weights.
struct RunnerOptions {
  at::Device device = at::kCPU;
  MemorySource* memory = nullptr;  ///< of ModelRunner: for borders, saved, work; null: the host's
  /// of ModelRunner, by unit: the copies of its parameters in `precision`; empty: float32
  std::vector<void*> low;
  at::ScalarType precision = at::kFloat;
  const double* loss_scale = nullptr;  ///< Context::loss_scale
  /// For ModelRunner: whether gradients take the memory of inputs that segments consume. If so,
  /// these borders hold no values after a forward in training.
  bool consume = false;
  bool training = true;  ///< of ModelRunner; false: forward alone
  /// For PlanRunner: where the copies in `precision` of a parameter buffer's values are stored, in
  /// the buffer's own order. Empty if precision is float32.
  std::function<void*(int buffer)> low_memory = {};
};

/// Runs one micro-batch at a time: its forward, then (in training) its backward, before the next
/// begins. Not thread-safe.
class ModelRunner {
 public:
  /// `units[b]` are the values of block b's unit: BlockShape::unit_size floats, 64-byte aligned,
  /// null if the block has none. They, `model` and `accounts` must outlive the runner. The
  /// constructor takes the memory for borders, saved values and work.
  ModelRunner(const Model& model, const ModelShape& shape, std::span<float* const> units,
              Accounts& accounts, const RunnerOptions& options = {});
  ~ModelRunner();

  /// `data` is as Model::data says; the tensors stay the same until the micro-batch's backward
  /// ends. Those in the host's memory are shown to Model::check first.
  void forward_all(const Pass& pass, Tensors data);
  /// `gradients[b]` is where block b's gradient goes (BlockShape::gradient_size floats). It is
  /// written whole; nothing is added to what was there.
  void backward_all(const Pass& pass, Tensors data, std::span<float* const> gradients);

  /// The loss of the last forward. On a device this waits for it.
  Loss loss() const;
  /// The last output of that name on the way to the loss ("logits"), valid until the next forward.
  /// Throws Error if there is none.
  at::Tensor border(const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
