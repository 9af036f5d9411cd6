#include "app/train_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "observe/progress.h"
#include "observe/tensorboard.h"
#include "tensor/threads.h"
#include "train/run_folder.h"

namespace tutti {

namespace {

void print_header(const Job& job) {
  const TrainConfig& t = job.train;
  const LayoutConfig& l = job.layout;
  fmt::print("job     {}: {} steps of {} lanes x {} x {}, {}, seed {}, {} {}, {} matmul\n", job.name, t.steps, t.lanes,
             t.micro_batches, t.micro_batch_size, t.optimizer, t.seed, job.numerics.precision, job.numerics.isa,
             job.numerics.matmul);
  fmt::print("layout  {} {} rank{}, {}{}, overlap {}, fold {}\n", l.ranks, l.workers, l.ranks == 1 ? "" : "s",
             l.transport, l.hosts > 1 ? fmt::format(", {} hosts", l.hosts) : "", l.overlap ? "on" : "off", l.fold);
  if (job.numerics.reduce != "exact")
    fmt::print(
        "inexact numerics.reduce = \"{}\": the order of additions follows the number of ranks, so the bits depend on "
        "the layout\n",
        job.numerics.reduce);
}

bool sets(const std::vector<Setting>& settings, const std::string& key) {
  return std::any_of(settings.begin(), settings.end(), [&](const Setting& s) { return s.key == key; });
}

Job resumed_job(const TrainArguments& arguments, std::vector<Setting> settings) {
  // The run's transport was chosen for the workers it had.
  if (sets(settings, "layout.workers") && !sets(settings, "layout.transport"))
    settings.push_back({"layout.transport", "auto"});
  RunFolder folder = open_run(arguments.resume);
  std::string text = read_file(folder.job());
  Job before = parse_job(text, folder.job(), {}), job = parse_job(text, folder.job(), settings);
  if (auto changed = job_differences(before, job); !changed.empty()) {
    for (std::string& fault : changed)
      fault = fmt::format("--resume {}: {}; only [layout] may change", arguments.resume, fault);
    throw ConfigError(std::move(changed));
  }
  return job;
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

Job job_of(const TrainArguments& arguments) {
  auto settings = parse_settings(arguments.set, arguments.ranks);
  Job job;
  if (!arguments.resume.empty()) {
    job = resumed_job(arguments, settings);
  } else if (!arguments.job_text.empty()) {
    job = parse_job(arguments.job_text, "job", settings);
  } else {
    job = load_job(arguments.job, settings);
  }
  resolve(job, this_machine());
  choose_library_isa(job.numerics.isa);
  return job;
}

int train_command(const TrainArguments& arguments, const MakeModel& make_model, const OwnPartition& partition) {
  RunOptions options;
  options.job = job_of(arguments);
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
    fmt::print("rank {} pid {}\n", rank, pid);
    std::fflush(stdout);
  };
  print_header(options.job);
  std::fflush(stdout);
  RunResult result = run(options);
  if (!result.ok) {
    fmt::print(stderr, "\n");
    for (const std::string& failure : result.failures) fmt::print(stderr, "tutti: {}\n", failure);
    return 1;
  }
  fmt::print("run     {}\n", result.folder);
  fmt::print("state sha256 {}\n", result.hash);
  std::fflush(stdout);
  return result.stopped ? 130 : 0;
}

}  // namespace tutti
