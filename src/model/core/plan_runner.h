// Runs the segments of a model as a program says. The program decides which buffer holds what and
// how many micro-batches are in flight; this class makes tensors of the buffers and calls the
// segments with them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "model/core/runner.h"
#include "model/core/segment.h"
#include "plan/ir/program.h"

namespace tutti {

/// The bytes that each buffer of a program needs by what segments declare themselves. The
/// plan's own sizes include what the dry run measured of ATen's allocations, which need no room
/// in the buffer.
std::vector<int64_t> declared_bytes(const Model& model, const Program& program);

/// Any number of micro-batches may be in flight, each in buffers of its own. Not thread-safe.
class PlanRunner {
 public:
  /// `memory(buffer)` says where a buffer of the program is, 256-byte aligned; values that other
  /// instructions still need must stay there. A buffer of saved or work bytes needs only what the
  /// segment declares itself, since everything else that the dry run measured is ATen's own. Model,
  /// shape, program and accounts must outlive the runner. Of the options, `memory` and `low` are
  /// not used: low_memory says where copies of parameters are stored.
  PlanRunner(const Model& model, const ModelShape& shape, const Program& program,
             std::function<std::byte*(int buffer)> memory, Accounts& accounts,
             RunnerOptions options = {});
  ~PlanRunner();

  /// `data` holds the micro-batch's tensors as Model::data says, the same until its last backward;
  /// buffers that flow.in names for them are not looked at. In the first layer, tensors in the
  /// host's memory are shown to Model::check. A forward whose segment is computed `again` later in
  /// the program (recomputation) leaves nothing but its outputs.
  void forward(const Instruction& instruction, const Pass& pass, Tensors data);
  /// Runs backward, or the part of it that the instruction says, of the segment whose forward ran
  /// for the same lane and micro-batch. Gradients are written whole. Parameters may be in other
  /// buffers than in forward, with the same values.
  void backward(const Instruction& instruction, const Pass& pass, Tensors data);

  /// The loss that the forward of a last segment left. On a device this waits for it;
  /// output(forward, "loss") does not.
  Loss loss(const Instruction& forward) const;
  /// The output of that name of the forward instruction; undefined if it has none.
  at::Tensor output(const Instruction& forward, const std::string& name) const;
  /// Whether everything that the forward left is finite, including the loss: one bool, which on a
  /// device is not waited for. Undefined if it left nothing that might not be.
  at::Tensor finite(const Instruction& forward) const;
  /// The same for the gradients that the backward instruction has written.
  at::Tensor finite_gradients(const Instruction& backward) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
