#include "app/verify.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>

#include "base/error.h"
#include "base/file.h"

namespace tutti {

namespace {

struct Layout {
  int64_t ranks;
  const char *workers, *transport;
  bool overlap;
  int64_t hosts = 1;
  const char* fold = "local";
};

// Each mechanism that could betray the promise appears in at least one row.
constexpr Layout kLayouts[] = {
    {1, "process", "shm", true},
    {1, "thread", "inproc", false},
    {2, "process", "shm", true},
    {2, "process", "shm", false},
    {2, "process", "tcp", true},
    {2, "thread", "inproc", true},
    {2, "process", "shm", true, 1, "root"},
    {3, "process", "shm", true},
    {3, "process", "tcp", false},
    {3, "thread", "inproc", true},
    {4, "process", "shm", true},
    {4, "process", "shm", true, 2},
    {4, "process", "tcp", true},
    {4, "thread", "inproc", false},
    {4, "process", "tcp", true, 1, "root"},
    {8, "process", "shm", true},
    {8, "process", "tcp", true},
    {8, "thread", "inproc", true},
    {8, "process", "shm", false, 2},
};

/// Runs in a child process, so that every layout starts from a process that has computed nothing.
RunResult run_apart(const RunOptions& options) {
  int ends[2];
  if (::pipe(ends) != 0) throw_errno("make", "a pipe");
  std::fflush(nullptr);
  pid_t child = ::fork();
  if (child < 0) throw_errno("start", "a process");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // and its ranks die with it
    std::string text;
    int code = 1;
    try {
      RunResult result = run(options);
      code = result.ok ? 0 : 1;
      text = result.ok ? result.hash : result.failures.front();
    } catch (const std::exception& e) {
      text = e.what();
    }
    (void)!::write(ends[1], text.data(), text.size());
    ::_exit(code);
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 512> part{};
  for (ssize_t n; (n = ::read(ends[0], part.data(), part.size())) > 0;) text.append(part.data(), n);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  RunResult result;
  result.ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (result.ok) {
    result.hash = text;
  } else {
    result.failures.push_back(text.empty() ? "the run ended without a word" : text);
  }
  return result;
}

}  // namespace

int verify_command(const TrainArguments& arguments, int64_t steps, const MakeModel& make_model) {
  RunOptions options;
  options.job = job_of(arguments);
  options.make_model = make_model;
  options.keep = false;
  options.stop_at = steps;
  fmt::print("{} for {} steps over layouts\n\n", options.job.name, steps);
  fmt::print("{:>5}  {:8} {:8} {:7} {:>5}  {:6} state sha256\n", "ranks", "workers", "transport", "overlap", "hosts",
             "fold");
  std::string expected;
  int differ = 0, ran = 0;
  for (const Layout& layout : kLayouts) {
    if (layout.ranks > options.job.train.lanes) continue;
    LayoutConfig& l = options.job.layout;
    l.ranks = layout.ranks;
    l.workers = layout.workers;
    l.transport = layout.transport;
    l.overlap = layout.overlap;
    l.hosts = layout.hosts;
    l.fold = layout.fold;
    RunResult result = run_apart(options);
    if (expected.empty()) expected = result.hash;
    bool same = result.ok && result.hash == expected;
    differ += same ? 0 : 1;
    ++ran;
    fmt::print("{:>5}  {:8} {:8}  {:7} {:>5}  {:6} {}{}\n", l.ranks, l.workers, l.transport, l.overlap ? "on" : "off",
               l.hosts, l.fold, result.ok ? result.hash : result.failures.front(), same ? "" : "   DIFFERS");
    std::fflush(stdout);
  }
  if (differ == 0) {
    fmt::print("\n{} layouts, one state\n", ran);
  } else {
    fmt::print("\n{} of {} layouts differ\n", differ, ran);
  }
  return differ == 0 ? 0 : 1;
}

}  // namespace tutti
