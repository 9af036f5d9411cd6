// A rank of a mesh that leaves its plan is found by the first that meets it, and named. No rank
// ever times out here.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "config/model_rules.h"
#include "launch/local.h"
#include "model/make_model.h"
#include "support/mesh_job.h"
#include "train/trainer.h"

namespace tutti {
namespace {

struct Case {
  std::string name;
  std::vector<Setting> layout;
  std::string queue;
  Op op;  ///< the first two of these change places
};
void PrintTo(const Case& which, std::ostream* out) { *out << which.name; }

/// What stands at the two places that change, as people read it.
using Names = std::array<std::string, 2>;

Names swap_two(const Program& program, const Case& which) {
  for (const Queue& queue : program.queues) {
    if (queue.name != which.queue) continue;
    auto& instructions = const_cast<Queue&>(queue).instructions;  // behind the plan's back
    const auto is = [&](const Instruction& i) { return i.op == which.op; };
    const auto first = std::find_if(instructions.begin(), instructions.end(), is);
    const auto second = std::find_if(first + 1, instructions.end(), is);
    const Names names{to_string(*first), to_string(*second)};
    std::swap(*first, *second);
    // what the rank waits for within itself stays where it was
    std::swap(first->waits, second->waits);
    std::swap(first->signal, second->signal);
    return names;
  }
  throw Error("no queue " + which.queue);
}

LaunchResult train(const Case& which, int altered, Names& names) {
  std::vector<Setting> settings = which.layout;
  settings.insert(
      settings.end(),
      {{"layout.workers", "thread"}, {"layout.timeout", "1000"}, {"layout.bucket_floats", "1"}});
  Job job = parse_job(testing_support::kMeshMlp, "job", settings);
  resolve(job, this_machine(), {});
  return launch_local({.ranks = 2, .threads = true, .timeout = std::chrono::seconds(1000)},
                      [&](RankContext& context) {
                        const Model model = make_model(job);
                        Trainer trainer(job, model, context, "");
                        try {
                          trainer.step();
                          if (context.rank == altered) names = swap_two(trainer.program(), which);
                          for (int step = 1; step < 4; ++step) trainer.step();
                        } catch (...) {
                          context.failing();
                          throw;
                        }
                      });
}

class MeshRollCall : public ::testing::TestWithParam<Case> {};

}  // namespace

TEST_P(MeshRollCall, ARankThatLeavesItsPlanIsNamedAtOnce) {
  Names names;
  ASSERT_EQ(train(GetParam(), -1, names).failures, std::vector<std::string>());
  const LaunchResult result = train(GetParam(), 1, names);
  ASSERT_FALSE(result.ok());
  const std::string& cause = result.failures[0];
  EXPECT_NE(cause.find("rank 1 is at "), std::string::npos) << cause;
  EXPECT_NE(cause.find("rank 0 is at "), std::string::npos) << cause;
  EXPECT_NE(cause.find("of step 2)"), std::string::npos) << cause;
  // a receiver names its own queue
  const std::string way = GetParam().queue.substr(0, GetParam().queue.find(' '));
  EXPECT_NE(cause.find("(queue " + way), std::string::npos) << cause;
  if (GetParam().op != Op::kRecv && GetParam().op != Op::kSend) {
    EXPECT_NE(cause.find(names[0]), std::string::npos) << cause << "\nwithout " << names[0];
  }
  EXPECT_NE(cause.find(names[1]), std::string::npos) << cause << "\nwithout " << names[1];
}

INSTANTIATE_TEST_SUITE_P(
    Of, MeshRollCall,
    ::testing::Values(
        Case{"ReducesInProcess", {{"layout.zero", "2"}}, "data", Op::kReduce},
        Case{"ReducesOverTcp",
             {{"layout.zero", "2"}, {"layout.transport", "tcp"}},
             "data",
             Op::kReduce},
        Case{"GathersInProcess", {{"layout.zero", "3"}}, "data", Op::kGather},
        Case{"GathersOverTcp",
             {{"layout.zero", "3"}, {"layout.transport", "tcp"}},
             "data",
             Op::kGather},
        Case{"MessagesInProcess", {{"layout.pipeline", "2"}}, "activations in", Op::kRecv},
        Case{"MessagesOverTcp",
             {{"layout.pipeline", "2"}, {"layout.transport", "tcp"}},
             "activations in",
             Op::kRecv},
        Case{"SendsInProcess", {{"layout.pipeline", "2"}}, "gradients out", Op::kSend},
        Case{"SendsOverTcp",
             {{"layout.pipeline", "2"}, {"layout.transport", "tcp"}},
             "gradients out",
             Op::kSend},
        Case{"ExchangesInProcess", {{"layout.tensor", "2"}}, "compute", Op::kExchange},
        Case{"ExchangesOverTcp",
             {{"layout.tensor", "2"}, {"layout.transport", "tcp"}},
             "compute",
             Op::kExchange}),
    [](const auto& test) { return test.param.name; });

}  // namespace tutti
