// Runs the folds as launchers in child processes, as many at once as cores allow, and passes
// requests to stop on to them.
#include "app/commands/crossval.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/apart.h"
#include "base/error.h"
#include "base/file.h"
#include "base/stop_signals.h"
#include "base/text/terminal.h"
#include "infer/add_inference.h"
#include "launch/stop.h"
#include "train/run_folder.h"

namespace tutti {

namespace {

using nlohmann::json;

/// The last evaluation's numbers.
std::map<std::string, double> last_metrics(const std::string& run) {
  std::ifstream lines(RunFolder{run}.metrics());
  json last;
  for (std::string line; std::getline(lines, line);) {
    json record = json::parse(line, nullptr, false);
    if (record.is_object() && record.value("event", json()) == "eval") last = std::move(record);
  }
  if (last.is_null()) throw Error(fmt::format("{}: it was not evaluated", run));
  std::map<std::string, double> metrics;
  for (const auto& [name, value] : last.at("metrics").items())
    if (value.is_number()) metrics[name] = value.get<double>();
  return metrics;
}

/// Requests to stop, which this process takes and passes on to the folds' launchers: a terminal
/// reaches those as well, `kill` and a scheduler do not. It then waits for them. The signals are
/// held meanwhile: one can neither end this process first nor be lost to a fold that is just
/// starting, which inherits the mask.
class Requests {
 public:
  Requests() {
    const sigset_t set = stop_set();
    signals_ = Fd(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
    if (!signals_) throw_errno("make", "a descriptor for signals");
  }
  int descriptor() const { return signals_.get(); }
  int signal() const { return first_ ? first_->signal : 0; }  ///< the first; 0: none

  void pass_on(const std::vector<Apart>& running) {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info)
      heed(static_cast<int>(info.ssi_signo), running);
    // A fold counts from when it heard of the first one, which was later: it is asked until it
    // agrees.
    if (at_once_) send(running, SIGINT);
  }

 private:
  void heed(int number, const std::vector<Apart>& running) {
    const StopRequest request{number, clock_.now()};
    const StopAction action = decide_stop(request, first_, /*begun=*/true);
    if (!first_) first_ = request;
    if (action == StopAction::kNone) return;
    at_once_ = action == StopAction::kAtOnce;
    print_line(
        stderr,
        fmt::format("tutti: {}: {}", stop_name(number),
                    at_once_
                        ? "stopped at once; what came after the folds' last checkpoints is lost"
                        : "the folds finish their step and save; Ctrl-C after this stops at once"));
    // SIGTERM never means "at once", in whichever order it and a terminal's SIGINT reach a fold.
    send(running, SIGTERM);
  }
  static void send(const std::vector<Apart>& running, int number) {
    for (const Apart& apart : running) ::kill(apart.pid, number);
  }

  Fd signals_;
  SystemClock clock_;
  std::optional<StopRequest> first_;
  bool at_once_ = false;
};

struct Spread {
  double mean = 0, deviation = 0;
};

Spread spread_of(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  Spread spread;
  for (double value : values) spread.mean += value / n;
  for (double value : values)
    spread.deviation += (value - spread.mean) * (value - spread.mean) / std::max(1.0, n - 1);
  spread.deviation = std::sqrt(spread.deviation);
  return spread;
}

void print_row(const std::string& head, const std::map<std::string, double>& metrics) {
  std::string row = fmt::format("{:10}", head);
  for (const auto& [name, value] : metrics) row += fmt::format("  {} {:.4f}", name, value);
  print_line(stdout, row);
}

/// Prints the mean and the deviation of every metric over the folds. They are also written to
/// crossval.json, with the metrics of each fold.
void report(const std::vector<std::map<std::string, double>>& folds, const std::string& folder) {
  json file{{"folds", folds}, {"mean", json::object()}, {"deviation", json::object()}};
  fmt::print("\n{:14} {:>10} {:>12}\n", "metric", "mean", "deviation");
  // a small fold may lack one: no auc of a single class
  std::map<std::string, std::vector<double>> by_name;
  for (const auto& fold : folds) {
    for (const auto& [name, value] : fold) by_name[name].push_back(value);
  }
  for (const auto& [name, values] : by_name) {
    const Spread spread = spread_of(values);
    fmt::print("{:14} {:10.4f} {:12.4f}", name, spread.mean, spread.deviation);
    if (values.size() < folds.size()) fmt::print("  of {} folds", values.size());
    fmt::print("\n");
    file["mean"][name] = spread.mean;
    file["deviation"][name] = spread.deviation;
  }
  write_file_atomic(folder + "/crossval.json", file.dump(2) + "\n");
  fmt::print("\nrun     {}\n", folder);
}

struct Folds {
  std::vector<std::map<std::string, double>> metrics;  ///< by fold
  int64_t started = 0;
  int stopped_by = 0;   ///< a signal; no other is started then
  std::string failure;  ///< of the first that failed; no other is started then
};

std::string fold_folder(const std::string& folder, int64_t fold) {
  return fmt::format("{}/fold-{}", folder, fold);
}

/// Trains the folds, so many at once, and prints each when it has ended.
Folds train_folds(RunOptions options, int64_t count, size_t at_once, const std::string& folder) {
  constexpr Duration kLook = std::chrono::milliseconds(100);
  Requests requests;
  Folds folds;
  folds.metrics.resize(static_cast<size_t>(count));
  std::vector<Apart> running;
  std::vector<int64_t> fold_of;
  const auto more = [&] {
    return folds.started < count && folds.stopped_by == 0 && folds.failure.empty();
  };

  // One fold that was stopped or has failed ends the rest: those that run are told, and no other is
  // started.
  while (more() || !running.empty()) {
    requests.pass_on(running);
    if (folds.stopped_by == 0) folds.stopped_by = requests.signal();
    while (more() && running.size() < at_once) {
      options.job.data.fold = folds.started;
      options.out = fold_folder(folder, folds.started);
      running.push_back(start_apart(options));
      fold_of.push_back(folds.started++);
    }

    // A fold that ends or a signal that comes ends the wait.
    if (running.empty()) break;
    const auto ended = wait_any(running, requests.descriptor(), kLook);
    if (!ended) continue;

    // What has ended leaves the list before it is judged, so that a next fold may start whatever it
    // came to.
    const auto i = static_cast<ptrdiff_t>(*ended);
    const RunResult result = finish_apart(running[*ended]);
    const int64_t fold = fold_of[*ended];
    running.erase(running.begin() + i);
    fold_of.erase(fold_of.begin() + i);

    // A stopped fold has no final metrics, and of those that fail the first one is told.
    if (folds.stopped_by == 0) folds.stopped_by = result.stopped_by;
    if (result.stopped_by != 0) continue;
    if (!result.ok && folds.failure.empty())
      folds.failure = fmt::format("fold {}: {}", fold, result.failures.front());
    if (!result.ok) continue;
    auto& metrics = folds.metrics[static_cast<size_t>(fold)];
    metrics = last_metrics(fold_folder(folder, fold));
    print_row(fmt::format("fold {}", fold), metrics);
  }
  return folds;
}

/// Tells, after a cross-validation was stopped, which folds are there and how to go on with them.
void report_stop(const Folds& folds, const std::string& folder) {
  std::vector<std::string> done, saved;
  for (int64_t fold = 0; fold < folds.started; ++fold) {
    const std::string path = fold_folder(folder, fold);
    if (path_exists(path))
      (folds.metrics[static_cast<size_t>(fold)].empty() ? saved : done).push_back(path);
  }
  print_line(stdout, fmt::format("\n{} of {} folds are done", done.size(), folds.metrics.size()));
  if (!done.empty())
    print_line(stdout, fmt::format("their runs are kept: tutti plot {}", fmt::join(done, " ")));
  for (const std::string& path : saved)
    print_line(stdout,
               fmt::format("to go on with one that was saved: tutti train --resume {}", path));
}

}  // namespace

int crossval_command(const TrainArguments& arguments, int64_t folds, const MakeModel& make_model) {
  // A fold is a run of the job with these settings. The first one comes before the user's, which
  // override it; the others come after them.
  TrainArguments given = arguments;
  given.set.insert(given.set.begin(), "layout.ranks=1");
  given.set.push_back(fmt::format("data.folds={}", folds));
  given.set.emplace_back("train.eval_batches=1048576");  // all of the fold

  // Until there is a folder, a request to stop may end the process as it is.
  RunOptions options;
  options.make_model = make_model;
  add_inference(options);
  std::optional<EndOnStop> nothing_begun(std::in_place);
  options.job = job_of(given);
  options.build = arguments.build;
  options.stop_at = arguments.steps;

  // As many folds run at once as have cores for all of their ranks.
  const int64_t ranks = options.job.layout.ranks;
  const size_t at_once = static_cast<size_t>(std::max<int64_t>(1, this_machine().cores / ranks));
  const HeldStops held;
  nothing_begun.reset();
  const LockedRun made = create_run(arguments.out, options.job);
  const std::string& folder = made.folder.path;
  fmt::print("{}: {} folds, {} at once, {} rank{} each\n\n", options.job.name, folds, at_once,
             ranks, ranks == 1 ? "" : "s");

  const Folds done = train_folds(options, folds, at_once, folder);

  // As with a run: one that ended before its first step leaves no folder behind.
  bool any = false;
  for (int64_t fold = 0; fold < done.started; ++fold) any |= path_exists(fold_folder(folder, fold));
  if (!any) remove_run(made.folder);

  // Metrics over the folds mean something only when all folds are there.
  if (!done.failure.empty()) throw Error(done.failure);
  if (done.stopped_by != 0) {
    report_stop(done, folder);
    return stop_code(done.stopped_by);
  }
  report(done.metrics, folder);
  return 0;
}

}  // namespace tutti
