#include "app/verify.h"

#include <fmt/format.h>

#include <cstdio>
#include <span>

#include "app/apart.h"

namespace tutti {

namespace {

struct Layout {
  int64_t ranks;
  const char *workers, *transport;
  bool overlap;
  int64_t hosts = 1;
  const char* fold = "local";
  const char* partition = "lanes";
  bool graph = true, prefetch = true;
};

// Each mechanism that could betray the promise appears in at least one row.
constexpr Layout kHostLayouts[] = {
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
    {1, "process", "shm", true, 1, "local", "even"},
    {2, "process", "shm", true, 1, "local", "round-robin"},
    {3, "process", "tcp", true, 1, "local", "hash"},
    {4, "thread", "inproc", true, 1, "local", "even"},
};

// Ranks that are more than the GPUs share them. The first row comes twice: a run repeats itself.
constexpr Layout kDeviceLayouts[] = {
    {1, "process", "nccl", true},
    {1, "process", "nccl", true},
    {1, "process", "nccl", true, 1, "local", "lanes", false, true},
    {1, "process", "nccl", true, 1, "local", "lanes", true, false},
    {1, "process", "nccl", false, 1, "local", "even", false, false},
    {2, "process", "nccl", true},
    {2, "process", "nccl", true, 1, "local", "lanes", false, true},
    {2, "process", "nccl", false, 1, "local", "lanes", true, false},
    {2, "process", "nccl", true, 1, "root", "round-robin", true, true},
    {4, "process", "nccl", true},
    {4, "process", "nccl", true, 1, "local", "lanes", false, false},
    {4, "process", "nccl", false, 1, "root", "lanes", true, true},
};

RunResult run_apart(const RunOptions& options) {
  Apart apart = start_apart(options);
  return finish_apart(apart);
}

}  // namespace

int verify_command(const TrainArguments& arguments, int64_t steps, const MakeModel& make_model) {
  RunOptions options;
  options.job = job_of(arguments);
  options.make_model = make_model;
  options.keep = false;
  const bool device = options.job.numerics.device == "cuda";
  // The first steps on a device are issued one by one: some more are launched as a graph.
  options.stop_at = steps > 0 ? steps : device ? 6 : 3;
  fmt::print("{} for {} steps over layouts\n\n", options.job.name, options.stop_at);
  fmt::print("{:>5}  {:8} {:9} {:7} {:>5}  {:6} {:11} {}state sha256\n", "ranks", "workers", "transport", "overlap",
             "hosts", "fold", "partition", device ? "graph prefetch " : "");
  std::string expected;
  int differ = 0, ran = 0;
  for (const Layout& layout : device ? std::span<const Layout>(kDeviceLayouts) : kHostLayouts) {
    if (layout.ranks > options.job.train.lanes) continue;
    LayoutConfig& l = options.job.layout;
    l.ranks = layout.ranks;
    l.workers = layout.workers;
    l.transport = layout.transport;
    l.overlap = layout.overlap;
    l.hosts = layout.hosts;
    l.fold = layout.fold;
    l.partition = layout.partition;
    l.graph = layout.graph;
    l.prefetch = layout.prefetch;
    RunResult result = run_apart(options);
    if (expected.empty()) expected = result.hash;
    bool same = result.ok && result.hash == expected;
    differ += same ? 0 : 1;
    ++ran;
    const std::string own = device ? fmt::format("{:5} {:8} ", l.graph ? "on" : "off", l.prefetch ? "on" : "off") : "";
    fmt::print("{:>5}  {:8} {:9} {:7} {:>5}  {:6} {:11} {}{}{}\n", l.ranks, l.workers, l.transport,
               l.overlap ? "on" : "off", l.hosts, l.fold, l.partition, own,
               result.ok ? result.hash : result.failures.front(), same ? "" : "   DIFFERS");
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
