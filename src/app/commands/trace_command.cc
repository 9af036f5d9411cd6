// Joins the ranks' traces. Ranks write on their own, so only steps that all of them kept can be
// compared.
#include "app/commands/trace_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/text/terminal.h"
#include "exec/trace.h"
#include "train/run_folder.h"

namespace tutti {

namespace {

/// The steps that every rank has kept, ascending. Records are bounded, and on a device not all
/// steps are traced.
std::vector<uint64_t> traced_steps(const std::vector<TraceEvent>& events) {
  std::map<uint64_t, std::set<int>> ranks;
  std::set<int> all;
  for (const TraceEvent& event : events) {
    ranks[event.step].insert(event.rank);
    all.insert(event.rank);
  }
  std::vector<uint64_t> steps;
  for (const auto& [step, those] : ranks)
    if (those == all) steps.push_back(step);
  return steps;
}

}  // namespace

int trace_command(const std::string& path, int64_t step) {
  // A rank's file is found by its number, so the first one that is missing ends the list.
  RunFolder folder = open_run(path);
  std::vector<TraceEvent> events;
  for (int rank = 0; path_exists(folder.trace(rank)); ++rank) {
    std::ifstream lines(folder.trace(rank));
    for (std::string line; std::getline(lines, line);) {
      try {
        events.push_back(parse_trace_line(line));
      } catch (const Error& error) {
        throw Error(fmt::format("{}: {}", folder.trace(rank), error.what()));
      }
    }
  }

  // Only a step that all ranks have traced can be drawn. The middle one is typical: the first steps
  // warm up, the last ones end.
  if (events.empty())
    throw Error(fmt::format("{}: it has no trace (a run writes it when it ends)", path));
  const std::vector<uint64_t> steps = traced_steps(events);
  if (steps.empty()) throw Error(fmt::format("{}: no step was traced on all ranks", path));
  if (step >= 0 && !std::binary_search(steps.begin(), steps.end(), static_cast<uint64_t>(step)))
    throw ConfigError({fmt::format(
        "--step {}: steps {} to {} were traced on all ranks{}", step, steps.front(), steps.back(),
        steps.back() - steps.front() >= steps.size() ? ", not every one" : "")});
  const uint64_t shown = step >= 0 ? static_cast<uint64_t>(step) : steps[steps.size() / 2];

  // Everything goes to the viewers, one step to the picture.
  write_file_atomic(folder.path + "/trace.json", chrome_trace(events));
  write_file_atomic(folder.path + "/trace.svg", svg_trace(events, shown));
  show(stdout,
       fmt::format("{}/trace.json  {} instructions, for ui.perfetto.dev or chrome://tracing\n",
                   folder.path, events.size()));
  show(stdout, fmt::format("{}/trace.svg   step {}\n", folder.path, shown));
  return 0;
}

}  // namespace tutti
