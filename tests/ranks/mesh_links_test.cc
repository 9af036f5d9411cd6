// The bytes that ranks of a mesh send each other are those that the plan says, to the byte. What a
// step sends besides (votes, roll calls) does not depend on the size of the model: it falls out of
// the difference between two sizes.
#include <gtest/gtest.h>

#include "config/model_rules.h"
#include "launch/local.h"
#include "model/make_model.h"
#include "optim/optimizer.h"
#include "plan/search/link_bytes.h"
#include "support/layout_runs.h"
#include "train/rank_plan.h"
#include "train/trainer.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

using Links = std::vector<std::vector<int64_t>>;  // [from][to]

Job job_of(const std::string& settings) {
  std::vector<Setting> list;
  const Arguments arguments = settings_of(settings);
  for (size_t i = 1; i < arguments.size(); i += 2) {
    const size_t equals = arguments[i].find('=');
    list.push_back({arguments[i].substr(0, equals), arguments[i].substr(equals + 1)});
  }
  Job job = parse_job(kSmallGpt, "job", list);
  resolve(job, this_machine(), {});
  return job;
}

/// In one step, by the transport's own count.
Links sent(const Job& job) {
  const auto ranks = static_cast<size_t>(job.layout.ranks);
  Links links(ranks, std::vector<int64_t>(ranks, 0));
  LaunchOptions launch;
  launch.ranks = static_cast<int>(ranks);
  launch.threads = true;
  const LaunchResult result = launch_local(launch, [&](RankContext& context) {
    const Model model = make_model(job);
    Trainer trainer(job, model, context, "");
    trainer.step();
    std::vector<int64_t>& mine = links[static_cast<size_t>(context.rank)];
    const auto count = [&](int sign) {
      for (int r = 0; r < context.size; ++r)
        if (r != context.rank)
          mine[static_cast<size_t>(r)] +=
              sign * static_cast<int64_t>(trainer.transport().sent_bytes(r));
    };
    count(-1);
    trainer.step();
    count(+1);
  });
  for (const std::string& failure : result.failures) ADD_FAILURE() << failure;
  return links;
}

Links planned(const Job& job) {
  const ModelShape shape = describe(make_model(job));
  const MeshOptions options =
      mesh_options(job, shape, static_cast<int>(make_optimizer(job.train)->slots().size()));
  return link_bytes(plan_mesh(shape, options), shape);
}

TEST(MeshLinks, CarryWhatThePlanSaysToTheByte) {
  for (const char* layout : {"ranks=2 zero=1", "ranks=3 zero=3", "ranks=4 zero=2 shards=2",
                             "ranks=4 zero=1 shards=2 hosts=2", "ranks=4 zero=3 hosts=2",
                             "ranks=8 pipeline=2 hosts=4", "ranks=2 pipeline=2 schedule=zbv",
                             "ranks=4 pipeline=2 zero=1 schedule=gpipe recompute=full",
                             "ranks=2 tensor=2 train.tensor_slices=2",
                             "ranks=4 tensor=2 pipeline=2 train.tensor_slices=2",
                             "ranks=3 tensor=3 train.tensor_slices=4"}) {
    SCOPED_TRACE(layout);
    const std::string common =
        std::string("workers=thread transport=tcp model.tied=true ") + layout;
    const Job small = job_of(common + " model.width=16 model.heads=4 train.micro_batch_size=2");
    const Job large = job_of(common + " model.width=32 model.heads=4 train.micro_batch_size=4");
    const Links less = sent(small), more = sent(large), said_less = planned(small),
                said_more = planned(large);
    for (size_t from = 0; from < less.size(); ++from)
      for (size_t to = 0; to < less.size(); ++to) {
        EXPECT_EQ(more[from][to] - less[from][to], said_more[from][to] - said_less[from][to])
            << "rank " << from << " to " << to;
        EXPECT_GE(less[from][to], said_less[from][to]) << "rank " << from << " to " << to;
      }
  }
}

}  // namespace
}  // namespace tutti
