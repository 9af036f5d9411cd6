// The part of `tutti train` that needs LibTorch: it resolves the job, prints its header, and either
// serves a launcher or launches the ranks itself.
#include "app/train_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "app/cli/launch_train.h"
#include "app/layouts/layout_choice.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/stop_signals.h"
#include "base/text/terminal.h"
#include "config/isa.h"
#include "device/library.h"
#include "grid/layout_name.h"
#include "infer/add_inference.h"
#include "launch/rank_host.h"
#include "model/rules/rules.h"
#include "observe/progress_bar.h"
#include "observe/tensorboard.h"
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
  if (job.numerics.device != DeviceKind::kCuda) {
    if (!machine.no_gpu.empty() && expects_gpu()) say("device  cpu: {}\n", machine.no_gpu);
    return;
  }
  const auto gpus = static_cast<int64_t>(machine.gpus.size());
  const int64_t used = std::min(gpus, l.ranks);
  say("device  {}{} ({}){}, graph {}, prefetch {}\n", used > 1 ? fmt::format("{} x ", used) : "",
      machine.gpus.front().name, bytes_text(machine.gpus.front().total_bytes),
      l.ranks > gpus ? fmt::format(", {} ranks on {} of them", l.ranks, gpus) : "",
      l.graph ? "on" : "off", l.prefetch ? "on" : "off");
}

void print_header(const Prepared& prepared) {
  const Job& job = prepared.job;
  const TrainConfig& t = job.train;
  const LayoutConfig& l = job.layout;
  say("job     {}: {} steps of {} lanes x {} x {}, {}, seed {}, {}, {} matmul\n", job.name, t.steps,
      t.lanes, t.micro_batches, t.micro_batch_size, t.optimizer, t.seed, job.numerics.precision,
      job.numerics.matmul);
  say("layout  {} {} rank{}{}, {}{}{}, overlap {}, fold {}\n", l.ranks, l.workers,
      l.ranks == 1 ? "" : "s", layout_suffix(l),
      l.isa == "auto" ? "" : fmt::format("isa {}, ", l.isa), l.transport,
      l.hosts > 1 ? fmt::format(", {} hosts", l.hosts) : "", l.overlap ? "on" : "off", l.fold);
  print_device(job, prepared.machine);
  if (job.numerics.device == DeviceKind::kCpu && prepared.machine.path > CodePath::kAvx2)
    say("notice  this processor has no AVX2: its kernels are those for any processor, which are "
        "several times slower\n");
  for (const std::string& note : job.notes) say("notice  {}\n", note);
  for (const std::string& change : prepared.changes)
    say("notice  {}: from here on the bits differ from those of a run without this change\n",
        change);
  if (job.numerics.reduce != ReduceKind::kExact)
    say("inexact numerics.reduce = \"{}\": the order of additions follows the number of ranks, so "
        "the bits depend on "
        "the layout\n",
        job.numerics.reduce);
}

}  // namespace

Job job_on_host(const std::string& run) {
  const RunFolder folder = open_run(run);
  Job job = job_of_run(folder, {{"numerics.device", "cpu"},
                                {"numerics.precision", "float32"},
                                {"layout.transport", "auto"}});
  const Machine machine = this_machine();
  forget_idle_keys(job, machine);
  resolve(job, machine, model_rules());
  choose_library_isa();
  return job;
}

Prepared prepare(const TrainArguments& arguments) {
  Prepared prepared = settle(arguments);
  choose_library_isa();
  return prepared;
}

int train_command(const TrainArguments& given, const MakeModel& make_model,
                  const OwnPartition& partition) {
  std::optional<HostedProgram> launcher = HostedProgram::inherited();
  std::signal(SIGPIPE, SIG_IGN);
  if (!given.resume.empty() && !given.out.empty())
    throw ConfigError({fmt::format(
        "--resume {} --out {}: a run goes on in its own folder; leave out --out, or copy {} to "
        "{} and resume the copy",
        given.resume, given.out, given.resume, given.out)});

  // Until the run begins there is nothing to save, so a signal simply ends the process.
  RunOptions options;
  std::optional<EndOnStop> nothing_begun(std::in_place);
  if (given.newest_valid)
    for (const std::string& damaged : set_aside_damaged(open_run(given.resume)))
      show(stdout, fmt::format("notice  {}\n", damaged));
  const TrainArguments arguments = with_planned_layout(given, make_model);
  const Prepared prepared = prepare(arguments);
  refuse_bad_mesh(prepared.job, make_model, arguments.resume.empty());

  // What the ranks run, with what only a program can say: the model, a partition, and the sinks of
  // events.
  options.job = prepared.job;
  options.make_model = make_model;
  add_inference(options);
  options.partition = partition;
  options.out = arguments.out;
  options.resume = arguments.resume;
  options.build = arguments.build;
  options.stop_at = arguments.steps;
  options.sinks = [terminal = ::isatty(STDOUT_FILENO) != 0](const std::string& folder) {
    std::vector<std::unique_ptr<EventSink>> sinks;
    sinks.push_back(make_progress(stdout, terminal));
    if (!folder.empty()) sinks.push_back(open_tensorboard(folder + "/tensorboard"));
    return sinks;
  };

  // Threads of this process are ranks whose launcher is this process, too.
  const bool threads = options.job.layout.workers == Workers::kThread;
  if (launcher && threads) {
    launcher->ready(kReadyAlone);
    return 0;
  }
  print_header(prepared);
  std::fflush(stdout);
  if (launcher) {
    const HeldStops held;  // from here on the launcher heeds them
    nothing_begun.reset();
    launcher->ready(ready_text(options));
    launcher->serve(
        [&](RankContext& context, const std::string& task) { run_task(options, context, task); });
  }
  tell_of_run(options);
  const HeldStops held;  // also while the last lines are printed
  nothing_begun.reset();
  return report(run(options));
}

}  // namespace tutti
