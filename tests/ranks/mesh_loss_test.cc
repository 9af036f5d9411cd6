// A rank of a mesh that is gone before a step: the others wait for it in the step's first meeting,
// whichever that is, and each ends by itself. (tests/chaos/mesh_kill_test.cc cannot tell: the
// launcher kills who does not.)
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>

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
};
void PrintTo(const Case& which, std::ostream* out) { *out << which.name; }

class MeshLoss : public ::testing::TestWithParam<std::tuple<Case, std::string>> {};

TEST_P(MeshLoss, EndsTheOthersWhereverTheyWait) {
  auto [which, transport] = GetParam();
  which.layout.push_back({"layout.transport", transport});
  Job job = parse_job(testing_support::kMeshMlp, "job", which.layout);
  resolve(job, this_machine(), {});
  const LaunchResult result = launch_local({.ranks = 2}, [&](RankContext& context) {
    const Model model = make_model(job);
    Trainer trainer(job, model, context, "");
    trainer.step();
    if (context.rank == 1) ::raise(SIGKILL);
    while (true) trainer.step();
  });
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.failures[0].find("rank 1 (pid "), std::string::npos) << result.failures[0];
  EXPECT_EQ(result.deaf, std::vector<int>());
}

INSTANTIATE_TEST_SUITE_P(
    In, MeshLoss,
    ::testing::Combine(::testing::Values(Case{"Reduce", {{"layout.zero", "2"}}},
                                         Case{"Gather", {{"layout.zero", "3"}}},
                                         Case{"Exchange", {{"layout.tensor", "2"}}},
                                         Case{"Message", {{"layout.pipeline", "2"}}}),
                       ::testing::Values("shm", "tcp")),
    [](const auto& test) {
      return std::get<0>(test.param).name + "Over" + std::get<1>(test.param);
    });

}  // namespace
}  // namespace tutti
