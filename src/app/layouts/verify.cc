// Every layout runs in a process of its own, which starts from this one before it has computed
// anything. The first hash is compared with all others.
#include "app/layouts/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <map>
#include <sstream>

#include "app/apart.h"
#include "app/layouts/verify_layouts.h"
#include "base/text/lists.h"
#include "base/text/terminal.h"
#include "grid/layout_name.h"
#include "infer/add_inference.h"

namespace tutti {

namespace {

RunResult run_apart(const RunOptions& options) {
  Apart apart = start_apart(options);
  return finish_apart(apart);
}

/// The layouts of the set that suit the job, and lines on those that do not: their number and the
/// reason. The processes of the layouts start from this one, which must have computed nothing: the
/// model is made in another.
struct Suited {
  std::vector<LayoutConfig> layouts;
  std::vector<std::string> left_out;
};
Suited suited_to(const Prepared& prepared, const MakeModel& make_model) {
  const auto layouts = verify_layouts(prepared.job);
  std::istringstream faults(answer_apart([&] {
    return fmt::format(
        "{}\n",
        fmt::join(layout_faults(prepared.job, layouts, prepared.machine, make_model), "\n"));
  }));
  Suited suited;
  std::map<std::string, int> reasons;
  for (const LayoutConfig& layout : layouts) {
    std::string fault;
    std::getline(faults, fault);
    if (fault.empty()) {
      suited.layouts.push_back(layout);
    } else {
      ++reasons[fault];
    }
  }
  for (const auto& [reason, count] : reasons)
    suited.left_out.push_back(fmt::format("{:>5}  {}", count, reason));
  return suited;
}

constexpr int kMeshWidth = 36;

}  // namespace

int verify_command(const TrainArguments& arguments, int64_t steps, const MakeModel& make_model) {
  Prepared prepared = prepare(arguments);
  RunOptions options;
  options.job = prepared.job;
  options.make_model = make_model;
  add_inference(options);
  options.keep = false;
  const bool device = options.job.numerics.device == DeviceKind::kCuda;
  // The first steps on a device are issued one by one: some more are launched as a graph.
  options.stop_at = steps > 0 ? steps : device ? 6 : 3;
  const Suited suited = suited_to(prepared, make_model);
  fmt::print("{} for {} steps over {} layouts\n\n", options.job.name, options.stop_at,
             suited.layouts.size());
  fmt::print("{:>5}  {:8} {:9} {:7} {:>5}  {:6} {:11} {}{:{}} state sha256\n", "ranks", "workers",
             "transport", "overlap", "hosts", "fold", "partition", device ? "graph prefetch " : "",
             "mesh", kMeshWidth);

  // The first layout's hash is the one that all others must have.
  std::string expected;
  int differ = 0, ran = 0;
  for (const LayoutConfig& l : suited.layouts) {
    options.job.layout = l;
    RunResult result = run_apart(options);
    if (expected.empty()) expected = result.hash;
    bool same = result.ok && result.hash == expected;
    differ += same ? 0 : 1;
    ++ran;
    const std::string mesh = layout_word(l) + (l.isa == "auto" ? "" : "," + l.isa);
    const std::string own =
        device ? fmt::format("{:5} {:8} ", l.graph ? "on" : "off", l.prefetch ? "on" : "off") : "";
    show(stdout,
         fmt::format("{:>5}  {:8} {:9} {:7} {:>5}  {:6} {:11} {}{:{}} {}{}\n", l.ranks, l.workers,
                     l.transport, l.overlap ? "on" : "off", l.hosts, l.fold, l.partition, own, mesh,
                     kMeshWidth, result.ok ? result.hash : result.failures.front(),
                     same ? "" : "   DIFFERS"));
    std::fflush(stdout);
  }

  // A layout that was left out is told with its reason, so that nobody takes it for verified.
  if (!suited.left_out.empty())
    fmt::print("\nleft out, since the job or its model does not go with them:\n");
  for (const std::string& line : first_few(suited.left_out)) fmt::print("{}\n", line);
  if (differ == 0) {
    fmt::print("\n{} layouts, one state\n", ran);
  } else {
    fmt::print("\n{} of {} layouts differ\n", differ, ran);
  }
  return differ == 0 ? 0 : 1;
}

}  // namespace tutti
