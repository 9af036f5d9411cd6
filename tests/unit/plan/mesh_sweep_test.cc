// Meshes of all shapes with everything else drawn: each is proved, and gives the values of one
// rank.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <random>

#include "plan/check/prove.h"
#include "plan/make/pipeline_schedule.h"
#include "unit/plan/mesh_runner.h"
#include "unit/plan/sample_meshes.h"

namespace tutti {

using test::mesh_model;
using test::MeshModel;
using test::MeshRunner;
using test::MeshValues;
using test::name_of;

namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int below(uint64_t n) { return static_cast<int>(random_() % n); }
  bool one_in(uint64_t n) { return below(n) == 0; }

  MeshModel model(int tensor) {
    MeshModel m;
    m.layers = 3 + below(5);
    m.columns = tensor + below(3);
    if (8 % m.columns != 0) m.columns = tensor <= 2 ? 2 : tensor <= 4 ? 4 : 8;
    m.tied = one_in(2);
    m.consumes = one_in(3);
    return m;
  }
  MeshOptions options(int data, int tensor, int pipeline) {
    MeshOptions o;
    o.mesh = {data, tensor, pipeline, 1};
    o.zero = below(4);
    if (o.zero > 0) {
      o.mesh.shards = data;
      if (data % 2 == 0 && one_in(3)) o.mesh.shards = data / 2;
    }
    o.batch = {data + below(4), 1 + below(3), 1};
    if (one_in(2)) o.batch.lanes = data * (1 + below(3));
    if (one_in(3)) o.fold = FoldKind::kOwner;
    o.micro = one_in(3);
    o.schedule = schedules_[below(schedules_.size())];
    o.chunks = 1 + below(2);
    if (splits_backward(o.schedule)) o.in_flight = below(2 * pipeline + 2);
    o.recompute = static_cast<Recompute>(below(3));
    o.overlap = !one_in(3);
    o.depth = below(3);
    if (one_in(4)) o.offload = Offload::kOptimizer;
    if (one_in(4)) o.offload = Offload::kAll;
    o.hosts = 1 << below(3);
    o.windows = !one_in(3);
    o.device = one_in(4);
    if (o.zero == 0 && !o.owner() && one_in(3)) o.fold = FoldKind::kRoot;
    // else refused
    o.ring =
        o.zero == 0 && tensor * pipeline == 1 && !o.owner() && !o.micro && !o.root() && one_in(2);
    o.bucket_floats = std::array<int64_t, 3>{0, 9000, 1 << 20}[below(3)];
    return o;
  }

 private:
  std::mt19937_64 random_;
  const std::vector<std::string> schedules_ = names_of<PipelinePart>();
};

/// All meshes of up to 8 ranks, everything else drawn.
template <class F>
int sweep(uint64_t seed, int rounds, F&& f) {
  Draw draw(seed);
  int count = 0;
  for (int round = 0; round < rounds; ++round)
    for (int data = 1; data <= 8; ++data)
      for (int tensor = 1; data * tensor <= 8; ++tensor)
        for (int pipeline = 1; data * tensor * pipeline <= 8; ++pipeline) {
          const MeshModel m = draw.model(tensor);
          MeshOptions o = draw.options(data, tensor, pipeline);
          // An order made to measure may put off the weight parts of a round whose sum another
          // stage waits for.
          if (m.tied && (o.micro || o.owner())) o.in_flight = 0;
          const ModelShape model = mesh_model(m);
          if (!mesh_faults(model, o).empty()) continue;
          ++count;
          f(m, model, o);
        }
  return count;
}

uint64_t any_seed() {
  const uint64_t given = GTEST_FLAG_GET(random_seed),
                 seed = given != 0 ? given : 1 + std::random_device{}() % 99999;
  std::printf("seed %lu\n", seed);
  return seed;
}

/// What the job says: one rank, without any of what a layout may choose.
MeshOptions one_rank(const MeshOptions& o) {
  MeshOptions one;
  one.batch = o.batch;
  one.micro = o.micro;
  one.overlap = false;
  return one;
}

}  // namespace

TEST(MeshSweep, WhatTheGeneratorMakesIsProved) {
  const uint64_t seed = any_seed();
  double slowest = 0;
  const int count =
      sweep(seed, 12, [&](const MeshModel& m, const ModelShape& model, const MeshOptions& o) {
        SCOPED_TRACE(fmt::format("seed {}: {}", seed, name_of(m, o)));
        const Plan plan = plan_mesh(model, o);
        const auto start = std::chrono::steady_clock::now();
        const auto faults = prove(plan, model);
        slowest = std::max(
            slowest,
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        EXPECT_TRUE(faults.empty()) << faults.size() << " faults: " << faults[0];
        MeshOptions forward = o;
        forward.forward_only = true;
        const auto of_evaluation = prove(plan_mesh(model, forward), model);
        EXPECT_TRUE(of_evaluation.empty()) << "evaluation: " << of_evaluation[0];
      });
  std::printf("%d layouts, the slowest in %.1f ms\n", count, 1e3 * slowest);
  EXPECT_GT(count, 200);
}

TEST(MeshSweep, WhatTheGeneratorMakesGivesTheValuesOfOneRankInAnyInterleaving) {
  const uint64_t seed = any_seed();
  const int count =
      sweep(seed, 2, [&](const MeshModel& m, const ModelShape& model, const MeshOptions& o) {
        if (o.mesh.ranks() > 4 && o.mesh.data > 2) return;
        SCOPED_TRACE(fmt::format("seed {}: {}", seed, name_of(m, o)));
        const Plan plan = plan_mesh(model, o), single = plan_mesh(model, one_rank(o));
        std::string problem;
        MeshRunner one(single, model, 0);
        ASSERT_EQ(one.run(2), "");
        const MeshValues expected = one.state(problem);
        for (uint64_t k = 0; k < 2; ++k) {
          MeshRunner runner(plan, model, seed * 2 + k);
          ASSERT_EQ(runner.run(2), "");
          EXPECT_TRUE(runner.state(problem) == expected);
          EXPECT_EQ(problem, "");
        }
      });
  EXPECT_GT(count, 10);
}

}  // namespace tutti
