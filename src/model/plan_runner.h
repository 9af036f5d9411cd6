// Runs the segments of a model as a mesh's program says: every tensor lies in the buffer that the instruction names. The
// program decides what is where and what is in flight; this class makes tensors of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "model/runner.h"
#include "model/segment.h"
#include "plan/program.h"

namespace tutti {

/// Not thread-safe.
class PlanRunner {
 public:
  /// `memory(buffer)`: where a buffer of the program lies, for good. Model, shape and program must outlive it. Options
  /// as ModelRunner's; `low` is not used: options.low_memory gives the copies.
  PlanRunner(const Model& model, const ModelShape& shape, const Program& program,
             std::function<std::byte*(int buffer)> memory, Accounts& accounts, RunnerOptions options = {});
  ~PlanRunner();

  /// `data`: the micro-batch's tensors, which must stay as they are until its last backward.
  void forward(const Instruction& instruction, const Pass& pass, Tensors data);
  void backward(const Instruction& instruction, const Pass& pass, Tensors data);
  /// What the forward of a last segment left.
  Loss loss(const Instruction& forward) const;
  /// The output of that name of the forward instruction; undefined: it has none.
  at::Tensor output(const Instruction& forward, const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
