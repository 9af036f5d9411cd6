// What the cells of a pipeline schedule hand to one another, in an order in which it can travel.
#pragma once

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/make/pipeline_schedule.h"

namespace tutti::test {

/// What a cell hands to a cell of another stage: activations, or (its `from` is no forward)
/// gradients.
struct Hop {
  Cell from, to;
  int source = 0, target = 0;  ///< stages
  bool operator==(const Hop&) const = default;
};
/// All hops of a schedule in one order. Queues that send or receive what is theirs in this order,
/// be they one per stage, direction and side or more (of fit_schedule: also one each down the V and
/// up again), never deadlock under unbuffered sends; the order of a stage's sends is that of its
/// cells, that of its receives need not be (zbv: two neighbours send to it). By the time at which
/// equal costs let them happen: a time that all queues share cannot go round in a circle.
inline std::vector<Hop> hops_of(const std::string& schedule, int stages, int chunks,
                                const std::vector<std::vector<Cell>>& cells) {
  const int all = stages * chunks_of(schedule, chunks);
  const auto times = time_cells(schedule, stages, chunks, cells);
  std::vector<std::pair<double, Hop>> timed;
  for (int stage = 0; stage < stages; ++stage) {
    for (size_t i = 0; i < cells[stage].size(); ++i) {
      const Cell& from = cells[stage][i];
      const int next = from.kind == CellKind::kForward ? from.chunk + 1 : from.chunk - 1;
      if (from.kind == CellKind::kWeight || next < 0 || next == all) continue;
      const int target = stage_of(schedule, stages, next);
      if (target == stage) continue;
      timed.push_back({times[stage][i].end, {from, {from.kind, next, from.micro}, stage, target}});
    }
  }
  std::sort(timed.begin(), timed.end(), [](const auto& a, const auto& b) {
    const auto key = [](const auto& x) {
      return std::tuple(x.first, x.second.source, x.second.from.kind);
    };
    return key(a) < key(b);
  });
  std::vector<Hop> hops;
  for (const auto& [time, hop] : timed) hops.push_back(hop);
  return hops;
}

}  // namespace tutti::test
