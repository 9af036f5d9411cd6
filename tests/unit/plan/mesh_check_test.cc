#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <random>

#include "plan/check/prove.h"
#include "plan/make/schedule.h"
#include "plan/make/transfers.h"
#include "unit/plan/mesh_runner.h"
#include "unit/plan/sample_meshes.h"

namespace tutti {

using test::mesh_model;
using test::MeshModel;
using test::MeshRunner;
using test::name_of;

namespace {

const char* const kSchedules[] = {"gpipe", "1f1b", "interleaved", "zero-bubble", "zbv"};

/// All meshes of up to 8 ranks, everything else drawn.
template <class F>
int sweep(uint64_t seed, int rounds, F&& f) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return static_cast<int>(random() % n); };
  int count = 0;
  for (int round = 0; round < rounds; ++round) {
    for (int data = 1; data <= 8; ++data) {
      for (int tensor = 1; data * tensor <= 8; ++tensor) {
        for (int pipeline = 1; data * tensor * pipeline <= 8; ++pipeline) {
          MeshModel m;
          m.layers = 3 + below(5);
          m.columns = tensor + below(3);
          if (8 % m.columns != 0) m.columns = tensor <= 2 ? 2 : tensor <= 4 ? 4 : 8;
          m.tied = below(2) == 0;
          MeshOptions o;
          o.mesh = {data, tensor, pipeline, 1};
          o.zero = below(4);
          if (o.zero > 0) {
            o.mesh.shards = data;
            if (data % 2 == 0 && below(3) == 0) o.mesh.shards = data / 2;
          }
          o.batch = {data + below(4), 1 + below(3), 1};
          if (below(2) == 0) o.batch.lanes = data * (1 + below(3));
          o.owner = below(3) == 0;
          o.micro = below(3) == 0;
          o.schedule = kSchedules[below(5)];
          o.chunks = 1 + below(2);
          if (splits_backward(o.schedule)) o.in_flight = below(2 * pipeline + 2);
          o.recompute = static_cast<Recompute>(below(3));
          o.overlap = below(3) > 0;
          o.depth = below(3);
          o.offload = below(4) == 0;
          o.offload_parameters = below(4) == 0;
          o.hosts = 1 << below(3);
          const ModelShape model = mesh_model(m);
          if (!mesh_faults(model, o).empty()) continue;
          ++count;
          f(m, model, o);
        }
      }
    }
  }
  return count;
}

uint64_t any_seed() {
  const uint64_t given = GTEST_FLAG_GET(random_seed), seed = given != 0 ? given : 1 + std::random_device{}() % 99999;
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

/// A plan to be damaged by hand.
struct Damaged {
  ModelShape model;
  MeshOptions options;
  Plan plan;

  Damaged(const MeshModel& m, const Mesh& mesh, int zero, Batch batch = {2, 2, 1}) : model(mesh_model(m)) {
    options.mesh = mesh, options.zero = zero, options.batch = batch;
    plan = plan_mesh(model, options);
  }
  /// The n-th instruction of an op on a rank: its queue, and where it stands there.
  std::pair<Queue*, size_t> find(int rank, Op op, int n = 0) {
    for (Queue& queue : plan.programs[rank].queues) {
      for (size_t k = 0; k < queue.instructions.size(); ++k) {
        if (queue.instructions[k].op == op && n-- == 0) return {&queue, k};
      }
    }
    ADD_FAILURE() << "no " << op_name(op);
    return {&plan.programs[rank].queues[0], 0};
  }
  Instruction& get(int rank, Op op, int n = 0) {
    const auto [queue, k] = find(rank, op, n);
    return queue->instructions[k];
  }
  /// Takes it out, with the waits for it.
  void drop(int rank, Op op, int n = 0) {
    const auto [queue, k] = find(rank, op, n);
    const int event = queue->instructions[k].signal;
    for (Queue& other : plan.programs[rank].queues) {
      for (Instruction& i : other.instructions) std::erase(i.waits, event);
    }
    queue->instructions.erase(queue->instructions.begin() + static_cast<std::ptrdiff_t>(k));
  }
  /// Some fault contains all the texts.
  void expect(const std::vector<std::string>& texts) {
    const auto faults = check_mesh(plan, model, options);
    for (const std::string& fault : faults) {
      bool all = true;
      for (const std::string& text : texts) all &= fault.find(text) != std::string::npos;
      if (all) return;
    }
    ADD_FAILURE() << "no fault says '" << fmt::format("{}", fmt::join(texts, "' and '")) << "' among\n"
                  << fmt::format("{}", fmt::join(faults, "\n"));
  }
};

const MeshModel kPlain{4, 1, false}, kTied{4, 1, true}, kSliced{4, 2, false};

}  // namespace

TEST(MeshCheck, ASendWithoutItsReceiveIsNamed) {
  Damaged d(kPlain, {1, 1, 2, 1}, 0);
  d.drop(1, Op::kRecv);
  d.expect({"rank 0", "Send", "has no partner"});
}

TEST(MeshCheck, ASendToAnotherThanItsReceiverIsNamed) {
  Damaged d(kPlain, {2, 1, 2, 1}, 0);
  d.get(0, Op::kSend).peer = 3;
  d.expect({"Send", "has no partner"});
}

TEST(MeshCheck, AReceiveOfAnotherSizeIsNamed) {
  Damaged d(kPlain, {1, 1, 2, 1}, 0);
  d.get(1, Op::kRecv).bytes += 256;
  d.expect({"rank 1", "Recv", "bytes"});
}

TEST(MeshCheck, AMemberThatStaysAwayFromAMeetingIsNamed) {
  Damaged d(kPlain, {2, 1, 1, 2}, 1);
  d.drop(1, Op::kReduce);
  d.expect({"Reduce", "ranks [0] come to it, its group is [0 1]"});
}

TEST(MeshCheck, MeetingsInAnotherOrderAreADeadlock) {
  Damaged d(kPlain, {2, 1, 1, 2}, 1);
  std::swap(d.get(1, Op::kReduce, 0), d.get(1, Op::kReduce, 1));
  d.expect({"deadlock", "rank 0", "rank 1"});
}

TEST(MeshCheck, SendsThatWaitForEachOtherAreADeadlock) {
  Damaged d(kPlain, {1, 1, 2, 1}, 0);
  // The first stage wants a gradient before it sends what that comes from.
  Instruction& recv = d.get(0, Op::kRecv);
  Instruction& send = d.get(0, Op::kSend);
  if (recv.signal < 0) recv.signal = d.plan.programs[0].events++;
  send.waits.push_back(recv.signal);
  d.expect({"deadlock", "Send", "Recv"});
}

TEST(MeshCheck, AnUnorderedAccessIsNamed) {
  Damaged d(kPlain, {2, 1, 1, 2}, 3);
  int n = 0;
  while (d.get(0, Op::kGather, n).waits.empty()) ++n;
  d.get(0, Op::kGather, n).waits.clear();
  d.expect({"rank 0", "Gather", "not ordered", "gathered"});
}

TEST(MeshCheck, ASliceThatOthersMayStillReadInTheNextStepIsNotWrittenBeforeTheVote) {
  Damaged d(kPlain, {2, 1, 1, 2}, 1);
  // The refreshed parameters of rank 0 are read when the step ends; a Load into them would begin the next one.
  const int parameter = d.get(0, Op::kGather).reads[0];
  d.get(0, Op::kLoad).writes[0] = parameter;
  d.expect({"rank 1", "Gather", "of the next step are not ordered"});
}

TEST(MeshCheck, AForwardOnTheWrongInputIsNamed) {
  Damaged d(kPlain, {2, 1, 1, 1}, 1);
  Instruction &first = d.get(0, Op::kForward, 0), &third = d.get(0, Op::kForward, 2);
  third.flow.in[0] = first.flow.in[0];
  d.expect({"rank 0", "queue compute", "Forward", "is not its input"});
}

TEST(MeshCheck, ALostFoldIsALostTerm) {
  Damaged d(kPlain, {2, 1, 1, 2}, 1);
  d.options.overlap = false;
  d.plan = plan_mesh(d.model, d.options);
  d.drop(0, Op::kFold);
  d.expect({"Update", "the job says"});
}

TEST(MeshCheck, FoldsInAnotherOrderAreAnotherSum) {
  Damaged d(kPlain, {2, 1, 1, 2}, 1);
  Add& add = d.get(0, Op::kFold).adds[0];
  std::swap(add.into, add.from);
  d.expect({"Update", "the job says"});
}

TEST(MeshCheck, ASquareThatIsCountedTwiceIsNamed) {
  Damaged d(kPlain, {4, 1, 1, 2}, 1, {4, 1, 1});
  const auto [from, k] = d.find(0, Op::kNorm);
  Instruction twin = from->instructions[k];
  twin.id = 4000000;
  twin.signal = -1;
  from->instructions.insert(from->instructions.begin() + static_cast<std::ptrdiff_t>(k), twin);
  d.expect({"squares of unit", "are counted 2 times"});
}

TEST(MeshCheck, AVoteThatDoesNotFollowEveryNormIsNamed) {
  Damaged d(kPlain, {2, 1, 1, 2}, 1);
  const auto [queue, k] = d.find(0, Op::kVote);
  std::swap(queue->instructions[k], queue->instructions[k - 1]);
  d.expect({"rank 0", "Vote", "does not follow"});
}

TEST(MeshCheck, ACopyOfSharedParametersThatIsNotRefreshedIsNamed) {
  Damaged d(kTied, {1, 1, 2, 1}, 0);
  for (int rank : {0, 1}) d.drop(rank, Op::kGather);
  d.expect({"rank 1", "'copy of 0 for 3' is not up to date"});
}

TEST(MeshCheck, ParametersThatAreNotGatheredAreNamed) {
  Damaged d(kPlain, {2, 1, 1, 2}, 3);
  for (int rank : {0, 1}) d.drop(rank, Op::kGather);
  d.expect({"Forward", "does not hold this step's parameters of unit 0"});
}

TEST(MeshCheck, ColumnsThatExchangeDifferentMicroBatchesAreNamed) {
  Damaged d(kSliced, {1, 2, 1, 1}, 0);
  const auto [queue, k] = d.find(1, Op::kExchange, 0);
  queue->instructions[k].lane = 1 - queue->instructions[k].lane;
  d.expect({"rank 1", "Exchange", "is not what column 1 brings"});
}

TEST(MeshCheck, ABufferThatIsTooSmallIsNamed) {
  Damaged d(kPlain, {2, 1, 1, 2}, 2, {2, 1, 1});
  d.plan.programs[1].buffers[d.get(1, Op::kReduce).writes[0]].bytes /= 2;
  d.expect({"rank 1", "slice"});
}

TEST(MeshCheck, WhatTheGeneratorMakesIsProved) {
  const uint64_t seed = any_seed();
  double slowest = 0;
  const int count = sweep(seed, 12, [&](const MeshModel& m, const ModelShape& model, const MeshOptions& o) {
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, name_of(m, o)));
    const Plan plan = plan_mesh(model, o);
    const auto start = std::chrono::steady_clock::now();
    const auto faults = check_mesh(plan, model, o);
    slowest = std::max(slowest, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    EXPECT_TRUE(faults.empty()) << faults.size() << " faults: " << faults[0];
    MeshOptions forward = o;
    forward.forward_only = true;
    const auto of_evaluation = check_mesh(plan_mesh(model, forward), model, forward);
    EXPECT_TRUE(of_evaluation.empty()) << "evaluation: " << of_evaluation[0];
  });
  std::printf("%d layouts, the slowest in %.1f ms\n", count, 1e3 * slowest);
  EXPECT_GT(count, 200);
}

TEST(MeshCheck, WhatTheGeneratorMakesGivesTheValuesOfOneRankInAnyInterleaving) {
  const uint64_t seed = any_seed();
  const int count = sweep(seed, 1, [&](const MeshModel& m, const ModelShape& model, const MeshOptions& o) {
    if (o.mesh.ranks() > 4 && o.mesh.data > 2) return;
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, name_of(m, o)));
    const Plan plan = plan_mesh(model, o), single = plan_mesh(model, one_rank(o));
    std::string problem;
    MeshRunner one(single, model, one_rank(o), 0);
    ASSERT_EQ(one.run(2), "");
    const auto expected = one.state(problem);
    for (uint64_t k = 0; k < 2; ++k) {
      MeshRunner runner(plan, model, o, seed * 2 + k);
      ASSERT_EQ(runner.run(2), "");
      EXPECT_TRUE(runner.state(problem) == expected);
      EXPECT_EQ(problem, "");
    }
  });
  EXPECT_GT(count, 10);
}

}  // namespace tutti
