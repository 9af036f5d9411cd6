// Applies settings to a job or to that of a run's last checkpoint, then resolves it for this
// machine.
#include "app/cli/settle.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "config/job_parts.h"
#include "device/library.h"
#include "model/rules/rules.h"
#include "state/checkpoint.h"
#include "state/manifest.h"
#include "train/run_folder.h"

namespace tutti {

namespace {

bool sets(const std::vector<Setting>& settings, const std::string& key) {
  return std::any_of(settings.begin(), settings.end(),
                     [&](const Setting& s) { return s.key == key; });
}

/// The job that the run's last checkpoint was trained with.
Job trained_job(const RunFolder& folder) {
  const std::string checkpoint = checkpoint_of(folder);
  return parse_job(read_manifest(checkpoint).job_toml, checkpoint + "/" + kManifestFile, {});
}

Job resumed_job(const TrainArguments& arguments, std::vector<Setting> settings) {
  // The run's transport was chosen for the workers and the device it had, its ranks for that one's
  // number.
  const bool moves = sets(settings, "numerics.device");
  if ((moves || sets(settings, "layout.workers")) && !sets(settings, "layout.transport"))
    settings.push_back({"layout.transport", "auto"});
  if (moves && !sets(settings, "layout.ranks")) settings.push_back({"layout.ranks", "0"});
  const RunFolder folder = open_run(arguments.resume);
  const Job before = job_of_run(folder), trained = trained_job(folder);
  // The checkpoint is the truth: a job.toml that was edited since is another job.
  if (auto edited = job_differences(trained, before); !edited.empty()) {
    for (std::string& fault : edited)
      fault = fmt::format("--resume {}: {} as {} says", arguments.resume, fault, folder.job());
    edited.push_back(
        fmt::format("--resume {}: a run goes on with the job that it began with: undo the change "
                    "(or remove {}, and it is "
                    "restored), or start a new run with `tutti train {}`",
                    arguments.resume, folder.job(), folder.job()));
    throw ConfigError(std::move(edited));
  }
  Job job = job_of_run(folder, settings);
  if (auto changed = job_differences(before, job); !changed.empty()) {
    for (std::string& fault : changed)
      fault = fmt::format("--resume {}: {}; only [layout], the device and the precision may change",
                          arguments.resume, fault);
    throw ConfigError(std::move(changed));
  }
  return job;
}

/// A run keeps to the checkpoint that taught it first, though the teacher may train on.
void settle_teacher(Job& job) {
  if (!loss_part(job).taught || job.loss.teacher_step != kAutomatic) return;
  const auto all = complete_checkpoints(RunFolder{job.loss.teacher}.checkpoints());
  if (all.empty()) return;  // whoever loads it says so
  job.loss.teacher_step = all.rbegin()->first;
  job.origin["loss.teacher_step"] = {Origin::Kind::kResolved};
}

}  // namespace

std::vector<Setting> parse_settings(const std::vector<std::string>& texts, int64_t ranks) {
  std::vector<Setting> settings;
  std::vector<std::string> faults;
  for (const std::string& text : texts) {
    size_t equals = text.find('=');
    if (equals == std::string::npos) {
      faults.push_back(fmt::format("--set {}: expected section.key=value", text));
    } else {
      settings.push_back({text.substr(0, equals), text.substr(equals + 1)});
    }
  }
  if (!faults.empty()) throw ConfigError(std::move(faults));
  if (ranks != 0) settings.push_back({"layout.ranks", std::to_string(ranks)});
  return settings;
}

Prepared settle(const TrainArguments& arguments, bool elsewhere) {
  auto settings = parse_settings(arguments.set, arguments.ranks);
  Prepared prepared;
  Job& job = prepared.job;
  if (!arguments.resume.empty()) {
    job = resumed_job(arguments, settings);
  } else if (!arguments.job_text.empty()) {
    job = parse_job(arguments.job_text, "job", settings);
  } else {
    job = load_job(arguments.job, settings);
  }
  prepared.machine = this_machine();
  add_gpus(prepared.machine, job.numerics.device);
  if (elsewhere && job.numerics.device == DeviceKind::kCuda && prepared.machine.gpus.empty())
    prepared.machine.gpus.push_back({.name = "GPU"});
  if (!arguments.resume.empty()) forget_idle_keys(job, prepared.machine);
  resolve(job, prepared.machine, model_rules());
  settle_teacher(job);
  if (!arguments.resume.empty())
    prepared.changes = device_differences(trained_job(open_run(arguments.resume)), job);
  return prepared;
}

}  // namespace tutti
