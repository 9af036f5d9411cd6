// Loads a run's checkpoint into a model without dropout, augmentation or teacher, and runs
// it forward.
#include "infer/trained.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "config/check/parameter_groups.h"
#include "config/job_parts.h"
#include "state/checkpoint.h"
#include "state/manifest.h"
#include "state/safetensors.h"
#include "train/run_folder.h"

namespace tutti {

namespace {

Job plain_job(const std::string& run, int64_t micro_batch_size, const NumericsConfig& numerics) {
  const RunFolder folder = open_run(run);
  Job job = job_of_run(folder);
  job.augment = {};
  job.numerics = numerics;
  job.train.micro_batch_size = micro_batch_size;
  // What a teacher said is not needed to answer.
  if (loss_part(job).taught)
    job.loss.kind = first_where<LossPart>([](const LossPart& loss) { return loss.plain; });
  return job;
}

}  // namespace

std::string tensors_path(const std::string& path) {
  if (is_file(path)) return path;
  if (path_exists(path + "/" + kParametersFile)) return path + "/" + kParametersFile;
  if (is_folder(path)) {
    if (const std::string latest = latest_checkpoint(path + "/checkpoints"); !latest.empty())
      return latest + "/" + kParametersFile;
  }
  throw Error(fmt::format(
      "{}: neither a safetensors file, nor a checkpoint, nor a run that has one", path));
}

void start_from(Model& model, const std::string& given, const std::string& wanted) {
  const std::string path = tensors_path(given);

  const auto tensors =
      read_tensors(path, [&](const std::string& name) { return fits(wanted, name); });

  // A shared parameter starts with its owner. All tensors that do not fit are named at once.
  std::string faults;
  int taken = 0;
  for (Block& block : model.blocks) {
    for (Parameter& parameter : block.parameters) {
      const std::string name = block.name + "." + parameter.name;
      if (!parameter.shared_with.empty() || !fits(wanted, name)) continue;
      const auto found = std::find_if(tensors.begin(), tensors.end(),
                                      [&](const FileTensor& t) { return t.name == name; });
      if (found == tensors.end()) {
        faults += fmt::format("\n  {} is missing", name);
      } else if (found->dims != parameter.dims) {
        faults += fmt::format("\n  {} is [{}], the model has [{}]", name,
                              fmt::join(found->dims, ", "), fmt::join(parameter.dims, ", "));
      } else {
        parameter.init = {Init::Kind::kGiven, 1,
                          std::make_shared<const std::vector<float>>(found->values)};
        ++taken;
      }
    }
  }
  if (!faults.empty())
    throw Error(fmt::format("{}: its tensors do not fit the model:{}", path, faults));
  if (taken == 0)
    throw Error(fmt::format("model.init_only = \"{}\" picks no parameter of the model", wanted));
}

Trained::Trained(const std::string& run, int64_t micro_batch_size, const NumericsConfig& numerics,
                 const MakeModel& make_model, int64_t step)
    : job_(plain_job(run, micro_batch_size, numerics)), model_(make_model(job_)) {
  start_from(model_,
             step == kAutomatic ? run : checkpoint_of_step(RunFolder{run}.checkpoints(), step),
             "*");
  shape_ = describe(model_);
  units_ = std::make_unique<Units>(model_, shape_, all_held(shape_), std::vector<std::string>{},
                                   job_.train.seed, std::vector<UnitMemory>{}, accounts_);
  std::vector<float*> parameters;
  for (size_t b = 0; b < shape_.blocks.size(); ++b)
    parameters.push_back(shape_.blocks[b].unit_size > 0 ? units_->parameters(static_cast<int>(b), 0)
                                                        : nullptr);
  RunnerOptions options;
  options.training = false;
  runner_ = std::make_unique<ModelRunner>(model_, shape_, parameters, accounts_, options);
}

at::Tensor Trained::output(Tensors data) {
  Pass pass;
  pass.training = false;
  runner_->forward_all(pass, data.first(model_.data.size()));
  return runner_->border(model_.output);
}

}  // namespace tutti
