// Connects runs with this folder: baselines, samples at the end, teachers and first values.
// Training itself does not include it.
#include "infer/add_inference.h"

#include "base/error.h"
#include "config/job_parts.h"
#include "infer/baseline.h"
#include "infer/prepare.h"
#include "infer/sampler.h"
#include "state/checkpoint.h"
#include "state/load_checkpoint.h"
#include "train/trainer.h"

namespace tutti {

namespace {

std::optional<Baseline> baseline_of(const Job& job, const Split& data) {
  switch (job.train.baseline) {
    case BaselineKind::kAuto:  // a resolved job has none
    case BaselineKind::kNone:
      break;
    case BaselineKind::kBigram:
      return Baseline{"byte bigram", bigram_loss(*data.train, *data.held_out, job.model.context)};
    case BaselineKind::kTruth:
      TUTTI_CHECK(data.truth, "data.kind = \"{}\" offers a truth and opens without one",
                  job.data.kind);
      return Baseline{"truth", data.truth()};
  }
  return std::nullopt;
}

std::optional<std::string> sample_of(const Finished& run) {
  if (run.job.train.sample_bytes == 0) return std::nullopt;

  // Somebody who asked for a sample that cannot be written was refused before. One that only comes
  // with a built-in job is told of here.
  const bool foreign = !model_part(run.job).sequences;
  if (foreign || run.job.train.tensor_slices > 1)
    return fmt::format("no sample: {}",
                       foreign
                           ? fmt::format("a model of kind {} writes no text", run.job.model.kind)
                           : fmt::format("train.tensor_slices = {}, and a model in columns "
                                         "writes no text",
                                         run.job.train.tensor_slices));
  Job job = run.job;
  const Units* units = &run.trainer.units();
  RunnerOptions options = run.trainer.runner_options();

  // Where parameters are cut over ranks, this one has them all from the checkpoint, in the host's
  // memory: a device may have no room for them.
  Accounts accounts;
  std::unique_ptr<Units> whole;
  if (!run.trainer.whole()) {
    const ModelShape& shape = run.trainer.shape();
    whole = std::make_unique<Units>(run.model, shape, all_held(shape), run.trainer.slots(),
                                    std::nullopt, std::vector<UnitMemory>{}, accounts);
    load_checkpoint(latest_checkpoint(run.checkpoints), whole->entries(), whole->pieces());
    units = whole.get();
    options = {};
    job.numerics.device = DeviceKind::kCpu;
    job.numerics.precision = Precision::kFloat32;
  }
  Sampler sampler(job, run.make_model, *units, run.trainer.data().tokenizer, options);
  return sampler.text(job.train.prompt, job.train.sample_bytes, job.train.seed, 0.8, run.enough);
}

}  // namespace

void add_inference(RunOptions& options) {
  options.prepare = prepared_model;
  options.shows = {baseline_of, sample_of};
}

}  // namespace tutti
