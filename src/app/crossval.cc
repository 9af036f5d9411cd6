#include "app/crossval.h"

#include <fmt/format.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "app/apart.h"
#include "base/error.h"
#include "base/file.h"
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

/// Ctrl-C reaches the folds' own launchers, which finish their step, save and end; this process waits for them.
/// Blocked, it can neither end this process first nor be lost to a fold that is just starting, which inherits the mask.
class HeldInterrupt {
 public:
  HeldInterrupt() {
    sigemptyset(&interrupt_);
    sigaddset(&interrupt_, SIGINT);
    ::pthread_sigmask(SIG_BLOCK, &interrupt_, &before_);
  }
  ~HeldInterrupt() {
    const timespec now{};
    ::sigtimedwait(&interrupt_, nullptr, &now);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  HeldInterrupt(const HeldInterrupt&) = delete;
  static bool came() {
    sigset_t waiting;
    return ::sigpending(&waiting) == 0 && sigismember(&waiting, SIGINT) == 1;
  }

 private:
  sigset_t interrupt_{}, before_{};
};

struct Spread {
  double mean = 0, deviation = 0;
};

Spread spread_of(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  Spread spread;
  for (double value : values) spread.mean += value / n;
  for (double value : values) spread.deviation += (value - spread.mean) * (value - spread.mean) / std::max(1.0, n - 1);
  spread.deviation = std::sqrt(spread.deviation);
  return spread;
}

void print_row(const std::string& head, const std::map<std::string, double>& metrics) {
  fmt::print("{:10}", head);
  for (const auto& [name, value] : metrics) fmt::print("  {} {:.4f}", name, value);
  fmt::print("\n");
  std::fflush(stdout);
}

/// The ways of all folds, then their means: also as crossval.json.
void report(const std::vector<std::map<std::string, double>>& folds, const std::string& folder) {
  json file{{"folds", folds}, {"mean", json::object()}, {"deviation", json::object()}};
  fmt::print("\n{:14} {:>10} {:>12}\n", "metric", "mean", "deviation");
  std::map<std::string, std::vector<double>> by_name;  // a small fold may lack one: no auc of a single class
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
  bool stopped = false;
  std::string failure;  ///< of the first that failed; no other is started then
};

std::string fold_folder(const std::string& folder, int64_t fold) { return fmt::format("{}/fold-{}", folder, fold); }

/// Trains the folds, so many at once, and prints each when it has ended.
Folds train_folds(RunOptions options, int64_t count, size_t at_once, const std::string& folder) {
  const HeldInterrupt held;
  Folds folds;
  folds.metrics.resize(static_cast<size_t>(count));
  std::vector<Apart> running;
  std::vector<int64_t> fold_of;
  const auto more = [&] { return folds.started < count && !folds.stopped && folds.failure.empty(); };
  while (more() || !running.empty()) {
    folds.stopped = folds.stopped || HeldInterrupt::came();
    while (more() && running.size() < at_once) {
      options.job.data.fold = folds.started;
      options.out = fold_folder(folder, folds.started);
      running.push_back(start_apart(options));
      fold_of.push_back(folds.started++);
    }
    if (running.empty()) break;
    const size_t i = wait_any(running);
    const RunResult result = finish_apart(running[i]);
    const int64_t fold = fold_of[i];
    running.erase(running.begin() + static_cast<ptrdiff_t>(i));
    fold_of.erase(fold_of.begin() + static_cast<ptrdiff_t>(i));
    folds.stopped = folds.stopped || result.stopped;
    if (!result.ok && folds.failure.empty()) folds.failure = fmt::format("fold {}: {}", fold, result.failures.front());
    if (!result.ok || result.stopped) continue;
    auto& metrics = folds.metrics[static_cast<size_t>(fold)];
    metrics = last_metrics(fold_folder(folder, fold));
    print_row(fmt::format("fold {}", fold), metrics);
  }
  return folds;
}

}  // namespace

int crossval_command(const TrainArguments& arguments, int64_t folds, const MakeModel& make_model) {
  TrainArguments given = arguments;
  given.set.insert(given.set.begin(), "layout.ranks=1");  // unless the user sets another
  given.set.push_back(fmt::format("data.folds={}", folds));
  given.set.emplace_back("train.eval_batches=1048576");  // all of the fold
  RunOptions options;
  options.make_model = make_model;
  options.job = job_of(given);
  options.stop_at = arguments.steps;
  const int64_t ranks = options.job.layout.ranks;
  const size_t at_once = static_cast<size_t>(std::max<int64_t>(1, this_machine().cores / ranks));
  const LockedRun made = create_run(arguments.out, options.job);
  const std::string& folder = made.folder.path;
  fmt::print("{}: {} folds, {} at once, {} rank{} each\n\n", options.job.name, folds, at_once, ranks,
             ranks == 1 ? "" : "s");

  const Folds done = train_folds(options, folds, at_once, folder);
  if (!done.failure.empty()) {
    // As with a run: one that failed before its first step leaves no folder behind.
    bool any = false;
    for (int64_t fold = 0; fold < done.started; ++fold) {
      any = any || path_exists(fold_folder(folder, fold));
    }
    if (!any) remove_run(made.folder);
    throw Error(done.failure);
  }
  if (done.stopped) return 130;
  report(done.metrics, folder);
  return 0;
}

}  // namespace tutti
