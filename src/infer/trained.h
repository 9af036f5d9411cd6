// A trained model that only answers: a teacher, a sampler, a generator.
#pragma once

#include <memory>
#include <string>

#include "model/core/runner.h"
#include "model/make_model.h"
#include "state/units.h"

namespace tutti {

class Trained {
 public:
  /// The model of a run with the parameters of its checkpoint of a step (kAutomatic: the latest),
  /// for micro-batches of so many samples. Augmentation is off and the loss is plain. `numerics` are
  /// what it computes with. Throws Error naming the run: none, no checkpoint, parameters that do not fit.
  Trained(const std::string& run, int64_t micro_batch_size, const NumericsConfig& numerics,
          const MakeModel& make_model, int64_t step = kAutomatic);
  Trained(const Trained&) = delete;

  /// The model's output for a micro-batch's data tensors; valid until the next call.
  at::Tensor output(Tensors data);
  const Job& job() const { return job_; }
  const Model& model() const { return model_; }
  const Units& units() const { return *units_; }

 private:
  Job job_;
  Model model_;
  ModelShape shape_;
  Accounts accounts_;
  std::unique_ptr<Units> units_;
  std::unique_ptr<ModelRunner> runner_;
};

/// Every parameter of `model` whose full name `wanted` (a pattern) fits starts as the file has it;
/// all of them must be there. Throws Error naming the file and every one that is missing or shaped
/// otherwise.
void start_from(Model& model, const std::string& path, const std::string& wanted);

/// The safetensors file that a path means: the file itself, a checkpoint's, or that of a run's
/// latest checkpoint. Throws Error when there is none.
std::string tensors_path(const std::string& path);

}  // namespace tutti
