// Every pipeline schedule on real executors over tcp, with blocks that take no time:
// bench/schedules.cc lets them wait.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/schedule_hops.h"
#include "support/timed_pipeline.h"

namespace tutti {

using test::run_timed;
using test::TimedCell;
using test::TimedPipeline;
using test::TimedStep;

namespace {

using test::Hop;
using test::hops_of;

class Schedules : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

const CellTime& time_of(const std::vector<TimedCell>& cells, const Cell& cell) {
  return std::find_if(cells.begin(), cells.end(),
                      [&](const TimedCell& c) { return c.cell == cell; })
      ->time;
}

}  // namespace

TEST_P(Schedules, RunToTheEndOverTcpInTheirOrder) {
  const auto& [schedule, stages] = GetParam();
  TimedPipeline pipeline{
      .schedule = schedule, .stages = stages, .micro_batches = 2 * stages, .steps = 3};
  const auto cells = make_schedule(schedule, stages, pipeline.chunks, pipeline.micro_batches);
  const auto hops = hops_of(schedule, stages, chunks_of(schedule, pipeline.chunks), cells);
  const std::vector<TimedStep> steps = run_timed(pipeline);
  ASSERT_EQ(steps.size(), 3u);
  for (const TimedStep& step : steps) {
    for (int s = 0; s < stages; ++s) {
      std::vector<Cell> ran;
      for (const TimedCell& cell : step.cells[s]) ran.push_back(cell.cell);
      ASSERT_EQ(ran, cells[s]) << "stage " << s;
    }
    for (const Hop& hop : hops) {
      EXPECT_LE(time_of(step.cells[hop.source], hop.from).end,
                time_of(step.cells[hop.target], hop.to).begin)
          << "from stage " << hop.source << " to " << hop.target << ", micro-batch "
          << hop.from.micro;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OfEveryKind, Schedules,
                         ::testing::Combine(::testing::ValuesIn(names_of<PipelinePart>()),
                                            ::testing::Values(4, 8)),
                         [](const auto& test) {
                           std::string name = std::get<0>(test.param);
                           std::erase(name, '-');
                           return name + "On" + std::to_string(std::get<1>(test.param)) + "Stages";
                         });

}  // namespace tutti
