// Runs the segments of a model as a program says: every tensor is in the buffer that the
// instruction names. The program decides what is where and what is in flight; this class makes
// tensors of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "model/core/runner.h"
#include "model/core/segment.h"
#include "plan/ir/program.h"

namespace tutti {

/// What a buffer needs by what segments declare, for each buffer of a program: the dry run's
/// measure of what ATen allocates itself stands in the plan, too.
std::vector<int64_t> declared_bytes(const Model& model, const Program& program);

/// Any number of micro-batches may be in flight, each in buffers of its own. Not thread-safe.
class PlanRunner {
 public:
  /// `memory(buffer)`: where a buffer of the program is, 256-byte aligned; what other instructions
  /// still need stays there. A buffer of saved or work bytes needs only what the segment declares
  /// itself: what the dry run measured besides is ATen's own. Model, shape, program and accounts
  /// must outlive the runner. Of the options `memory` and `low` are not used: low_memory says where
  /// copies of parameters lie.
  PlanRunner(const Model& model, const ModelShape& shape, const Program& program,
             std::function<std::byte*(int buffer)> memory, Accounts& accounts,
             RunnerOptions options = {});
  ~PlanRunner();

  /// `data`: the micro-batch's tensors as Model::data says, the same until its last backward;
  /// flow.in's buffers of them are not looked at. In the first layer Model::check sees those in the
  /// host's memory. A forward whose segment is computed `again` later in the program leaves nothing
  /// but its outputs.
  void forward(const Instruction& instruction, const Pass& pass, Tensors data);
  /// Backward, or the part of it that the instruction says, of the segment whose forward ran for
  /// the same lane and micro-batch. Gradients are written whole. Parameters may lie in other
  /// buffers than in forward, with the same values.
  void backward(const Instruction& instruction, const Pass& pass, Tensors data);

  /// What the forward of a last segment left. On a device this waits for it; output(forward,
  /// "loss") does not.
  Loss loss(const Instruction& forward) const;
  /// The output of that name of the forward instruction; undefined: it has none.
  at::Tensor output(const Instruction& forward, const std::string& name) const;
  /// Whether all that it left is finite, the loss among it: one bool, which on a device is not
  /// waited for; undefined: it left nothing that might not be.
  at::Tensor finite(const Instruction& forward) const;
  /// The same of the gradients that the backward instruction has written.
  at::Tensor finite_gradients(const Instruction& backward) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
