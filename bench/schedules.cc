// tutti-bench-schedules: how long the stages of a pipeline are idle when blocks wait instead of
// computing (tests/support/timed_pipeline.h). Reads lines "SCHEDULE STAGES MICRO_BATCHES FORWARD_MS
// STEPS" and answers each with a line of JSON:
//
//   idle      the stages' idle share of every step, as idle_share in plan/make/pipeline_schedule.h
//             counts it
//   formula   the published one
//   vote      of every step, from its first cell to the vote's end, the share that a stage spends
//             in the vote: the barrier before the update, which the other two do not count
#include <iostream>
#include <nlohmann/json.hpp>

#include "support/timed_pipeline.h"

namespace tutti {
namespace {

nlohmann::json measure(const test::TimedPipeline& pipeline) {
  std::vector<double> idle, vote;
  for (const test::TimedStep& step : test::run_timed(pipeline)) {
    idle.push_back(idle_share(pipeline.schedule, step.times()));
    vote.push_back(step.vote / (step.length * pipeline.stages));
  }
  return {{"idle", idle},
          {"formula", bubble_formula(pipeline.schedule, pipeline.stages, pipeline.chunks,
                                     pipeline.micro_batches)},
          {"vote", vote}};
}

void answer() {
  test::TimedPipeline pipeline;
  int64_t forward_ms = 0;
  while (std::cin >> pipeline.schedule >> pipeline.stages >> pipeline.micro_batches >> forward_ms >>
         pipeline.steps) {
    pipeline.forward = std::chrono::milliseconds(forward_ms);
    std::cout << measure(pipeline).dump() << std::endl;
  }
}

}  // namespace
}  // namespace tutti

int main() {
  try {
    tutti::answer();
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
