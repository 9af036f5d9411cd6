// The launcher's half of a training: it starts the program with LibTorch as rank host, waits for
// the settled job, then launches and watches the ranks.
#include "app/cli/launch_train.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/stop_signals.h"
#include "base/text/terminal.h"
#include "launch/limits.h"
#include "launch/rank_host.h"
#include "launch/stop.h"

namespace tutti {

std::string ready_text(const RunOptions& options) {
  return nlohmann::json{{"name", options.job.name},
                        {"job", to_toml(options.job)},
                        {"out", options.out},
                        {"resume", options.resume},
                        {"stop_at", options.stop_at}}
      .dump();
}

namespace {

RunOptions options_from(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  RunOptions options;
  // All of its values were settled by the program.
  options.job = parse_job(json.at("job"), "job", {});
  options.job.name = json.at("name");
  options.out = json.at("out");
  options.resume = json.at("resume");
  options.stop_at = json.at("stop_at");
  return options;
}

/// Why the program ended before it could say anything: it was asked to stop, or it crashed.
std::string words_for(int signal) {
  if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP)
    return stop_words({signal}, StopAction::kAtOnce, /*begun=*/false);
  return fmt::format(
      "the program that loads LibTorch was killed by signal {} ({}) before the first step", signal,
      ::strsignal(signal));
}

}  // namespace

int launch_train(const std::string& program, int argc, char** argv) {
  // A training outlives whoever reads its output: what counts is in the run's folder. The exit code
  // tells of the loss.
  std::signal(SIGPIPE, SIG_IGN);
  raise_file_limit();  // the program and its ranks inherit it
  // From before there is a program that a signal could end alone, until the last lines are printed.
  std::optional<HeldStops> held(std::in_place);
  RankHost host(program, {argv, argv + argc});
  const std::optional<std::string> ready = host.ready();
  // It has said why, unless it was ended while its libraries were loaded.
  if (!ready && host.killed_by() != 0) complain(words_for(host.killed_by()));
  if (!ready) return host.code();
  if (*ready == kReadyAlone) {
    held.reset();  // an executed program would inherit what is held
    ::setenv(kAlone, "1", 1);
    std::fflush(nullptr);
    ::execv(program.c_str(), argv);
    throw Error(fmt::format("cannot start {}: {}", program, std::strerror(errno)));
  }

  RunOptions options = options_from(*ready);
  tell_of_run(options);
  return report(run_hosted(options, host));
}

void tell_of_run(RunOptions& options) {
  options.started = [](int rank, int pid) {
    print_line(stdout, fmt::format("rank {} pid {}", rank, pid));
  };
  // On a terminal the bar's line is left as it is.
  options.say = [terminal = ::isatty(STDOUT_FILENO) != 0](const std::string& words) {
    if (terminal) show(stderr, "\n");
    complain(words);
  };
  options.abandon = [](const RunResult& result) { ::_exit(report(result)); };
}

int report(const RunResult& result) {
  const int stopped = result.stopped_by != 0 ? stop_code(result.stopped_by) : 0;
  // One message is enough: what other ranks said follows from it, and is in events.jsonl. A run
  // that was stopped at once has said so.
  if (!result.ok && stopped == 0) {
    show(stderr, "\n");
    complain(result.failures.front());
  }
  if (!result.ok) return stopped != 0 ? stopped : 1;
  if (!result.nothing_left.empty())
    show(stdout, fmt::format("notice  {}: there is nothing left to do\n", result.nothing_left));
  show(stdout, fmt::format("run     {}\nstate sha256 {}\n", result.folder, result.hash));
  std::fflush(stdout);
  return stopped;
}

}  // namespace tutti
