#include "app/train_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "app/layouts/layout_choice.h"
#include "base/error.h"
#include "base/file.h"
#include "base/stop_signals.h"
#include "base/terminal.h"
#include "device/library.h"
#include "grid/mesh.h"
#include "observe/progress_bar.h"
#include "observe/tensorboard.h"
#include "state/manifest.h"
#include "tensor/threads.h"
#include "train/run_folder.h"

namespace tutti {

namespace {

/// A part of the header and of the end.
template <typename... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  show(stdout, fmt::format(format, std::forward<Args>(args)...));
}

/// Which processor: a GPU with what runs on it, or why the one that is to be expected here is not
/// used.
void print_device(const Job& job, const Machine& machine) {
  const LayoutConfig& l = job.layout;
  if (job.numerics.device != "cuda") {
    if (!machine.no_gpu.empty() && expects_gpu()) say("device  cpu: {}\n", machine.no_gpu);
    return;
  }
  const auto gpus = static_cast<int64_t>(machine.gpus.size());
  const int64_t used = std::min(gpus, l.ranks);
  say("device  {}{} ({:.1f} GiB){}, graph {}, prefetch {}\n",
      used > 1 ? fmt::format("{} x ", used) : "", machine.gpus.front().name,
      static_cast<double>(machine.gpus.front().total_bytes) / (1 << 30),
      l.ranks > gpus ? fmt::format(", {} ranks on {} of them", l.ranks, gpus) : "",
      l.graph ? "on" : "off", l.prefetch ? "on" : "off");
}

/// How ranks share the work.
std::string mesh_text(const Job& job) {
  const LayoutConfig& l = job.layout;
  const Mesh mesh = mesh_of(l);
  std::string text;
  if (mesh.tensor * mesh.pipeline > 1)
    text =
        fmt::format(", data {} x tensor {} x pipeline {}", mesh.data, mesh.tensor, mesh.pipeline);
  if (mesh.pipeline > 1) text += ", " + l.schedule;
  if (l.in_flight > 0) text += fmt::format(", {} in flight", l.in_flight);
  if (l.zero > 0) text += fmt::format(", zero {}", l.zero);
  if (mesh.shards > 1 && mesh.shards < mesh.data) text += fmt::format(" over {}", mesh.shards);
  if (l.recompute != "none") text += ", recompute " + l.recompute;
  if (l.offload != "none") text += ", offload " + l.offload;
  return text;
}

void print_header(const Prepared& prepared) {
  const Job& job = prepared.job;
  const TrainConfig& t = job.train;
  const LayoutConfig& l = job.layout;
  say("job     {}: {} steps of {} lanes x {} x {}, {}, seed {}, {} {}, {} matmul\n", job.name,
      t.steps, t.lanes, t.micro_batches, t.micro_batch_size, t.optimizer, t.seed,
      job.numerics.precision, job.numerics.isa, job.numerics.matmul);
  say("layout  {} {} rank{}{}, {}{}, overlap {}, fold {}\n", l.ranks, l.workers,
      l.ranks == 1 ? "" : "s", mesh_text(job), l.transport,
      l.hosts > 1 ? fmt::format(", {} hosts", l.hosts) : "", l.overlap ? "on" : "off", l.fold);
  print_device(job, prepared.machine);
  for (const std::string& change : prepared.changes)
    say("notice  {}: from here on the bits differ from those of a run without this change\n",
        change);
  if (job.numerics.reduce != "exact")
    say("inexact numerics.reduce = \"{}\": the order of additions follows the number of ranks, so "
        "the bits depend on "
        "the layout\n",
        job.numerics.reduce);
}

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

/// The last words, and the exit code. One message is enough: what other ranks said follows from it,
/// and is in events.jsonl. A run that was stopped at once has said so.
int report(const RunResult& result) {
  const int stopped = result.stopped_by != 0 ? stop_code(result.stopped_by) : 0;
  if (!result.ok && stopped == 0) {
    show(stderr, "\n");
    complain(result.failures.front());
  }
  if (!result.ok) return stopped != 0 ? stopped : 1;
  if (!result.nothing_left.empty())
    say("notice  {}: there is nothing left to do\n", result.nothing_left);
  say("run     {}\n", result.folder);
  say("state sha256 {}\n", result.hash);
  std::fflush(stdout);
  return stopped;
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

Job job_on_host(const std::string& run) {
  const RunFolder folder = open_run(run);
  Job job = job_of_run(folder, {{"numerics.device", "cpu"},
                                {"numerics.precision", "float32"},
                                {"layout.transport", "auto"}});
  const Machine machine = this_machine();
  forget_idle_keys(job, machine);
  resolve(job, machine);
  choose_library_isa(job.numerics.isa);
  return job;
}

Prepared prepare(const TrainArguments& arguments, bool elsewhere) {
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
  if (elsewhere && job.numerics.device == "cuda" && prepared.machine.gpus.empty())
    prepared.machine.gpus.push_back({.name = "GPU"});
  if (!arguments.resume.empty()) forget_idle_keys(job, prepared.machine);
  resolve(job, prepared.machine);
  choose_library_isa(job.numerics.isa);
  if (!arguments.resume.empty())
    prepared.changes = device_differences(trained_job(open_run(arguments.resume)), job);
  return prepared;
}

int train_command(const TrainArguments& given, const MakeModel& make_model,
                  const OwnPartition& partition) {
  // A training outlives whoever reads its output: what counts is in the run's folder. The exit code
  // tells of the loss.
  std::signal(SIGPIPE, SIG_IGN);
  if (!given.resume.empty() && !given.out.empty())
    throw ConfigError({fmt::format(
        "--resume {} --out {}: a run goes on in its own folder; leave out --out, or copy {} to "
        "{} and resume the copy",
        given.resume, given.out, given.resume, given.out)});
  RunOptions options;
  std::optional<EndOnStop> nothing_begun(std::in_place);
  const TrainArguments arguments = with_planned_layout(given, make_model);
  const Prepared prepared = prepare(arguments);
  refuse_bad_mesh(prepared.job, make_model, arguments.resume.empty());
  options.job = prepared.job;
  options.make_model = make_model;
  options.partition = partition;
  options.out = arguments.out;
  options.resume = arguments.resume;
  options.stop_at = arguments.steps;
  bool terminal = ::isatty(STDOUT_FILENO) != 0;
  options.sinks = [terminal](const std::string& folder) {
    std::vector<std::unique_ptr<EventSink>> sinks;
    sinks.push_back(make_progress(stdout, terminal));
    if (!folder.empty()) sinks.push_back(open_tensorboard(folder + "/tensorboard"));
    return sinks;
  };
  options.started = [](int rank, int pid) {
    print_line(stdout, fmt::format("rank {} pid {}", rank, pid));
  };
  // On a terminal the bar's line is left as it is.
  options.say = [terminal](const std::string& words) {
    if (terminal) show(stderr, "\n");
    complain(words);
  };
  options.abandon = [](const RunResult& result) { ::_exit(report(result)); };
  print_header(prepared);
  std::fflush(stdout);
  const HeldStops held;  // also while the last lines are printed
  nothing_begun.reset();
  return report(run(options));
}

}  // namespace tutti
