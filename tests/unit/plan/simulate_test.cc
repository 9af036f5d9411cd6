#include "plan/search/simulate.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "plan/make/pipeline_schedule.h"
#include "plan/search/link_bytes.h"
#include "plan/search/roles.h"
#include "support/gpt_model_shape.h"

namespace tutti {

namespace {

Instruction make(Op op, uint32_t id, std::vector<int> waits = {}, int signal = -1, int peer = -1) {
  Instruction i;
  i.op = op, i.id = id, i.waits = std::move(waits), i.signal = signal, i.peer = peer;
  return i;
}

Program program(int rank, std::vector<std::vector<Instruction>> queues, int events = 0) {
  Program p;
  p.rank = rank, p.events = events;
  for (auto& list : queues) p.queues.push_back({"queue", std::move(list)});
  return p;
}

/// Every instruction takes as many seconds as its lane says, 1 where it has none; `per_rank`: times
/// rank + 1.
CostModel seconds_by_lane(bool per_rank = false) {
  CostModel cost;
  cost.work = [per_rank](const Program& p, const Instruction& i) {
    return Work{(i.lane < 0 ? 1.0 : i.lane) * (per_rank ? p.rank + 1 : 1)};
  };
  return cost;
}

MeshOptions data_parallel(int ranks, int lanes) {
  MeshOptions options;
  options.mesh.data = ranks, options.batch.lanes = lanes;
  return options;
}

/// The cells of a schedule as programs of one rank per stage: sends and receives on queues of their
/// own.
std::vector<Program> pipeline(const std::string& schedule, int stages, int chunks, int micros) {
  const auto cells = make_schedule(schedule, stages, chunks, micros);
  const int all = stages * chunks_of(schedule, chunks);
  std::vector<Program> programs;
  for (int stage = 0; stage < stages; ++stage) {
    Program p = program(stage, {{}});
    for (const Cell& cell : cells[static_cast<size_t>(stage)]) {
      const bool forward = cell.kind == CellKind::kForward;
      Instruction work = make(forward ? Op::kForward : Op::kBackward, 0);
      work.lane = cell.kind == CellKind::kBackward ? 2 : 1;
      const int from = forward ? cell.chunk - 1 : cell.chunk + 1,
                to = forward ? cell.chunk + 1 : cell.chunk - 1;
      const auto id = [&](int source) {
        return static_cast<uint32_t>(((source * micros) + cell.micro) * 2 + (forward ? 1 : 0)) + 1;
      };
      const auto peer = [&](int chunk) { return stage_of(schedule, stages, chunk); };
      // Every hop has queues of its own: their order is not what is tested here.
      if (cell.kind != CellKind::kWeight && from >= 0 && from < all && peer(from) != stage) {
        work.waits.push_back(p.events);
        p.queues.push_back({"in", {make(Op::kRecv, id(from), {}, p.events++, peer(from))}});
      }
      if (cell.kind != CellKind::kWeight && to >= 0 && to < all && peer(to) != stage) {
        work.signal = p.events++;
        p.queues.push_back({"out", {make(Op::kSend, id(cell.chunk), {work.signal}, -1, peer(to))}});
      }
      p.queues[0].instructions.push_back(work);
    }
    programs.push_back(std::move(p));
  }
  return programs;
}

}  // namespace

TEST(Simulate, QueuesRunBesideEachOtherAndEventsOrderThem) {
  Program p = program(
      0, {{make(Op::kForward, 1, {}, 0), make(Op::kForward, 2, {1})}, {make(Op::kFold, 3, {0}, 1)}},
      2);
  p.queues[1].instructions[0].lane = 3;
  const Simulation s = simulate(std::vector{p}, seconds_by_lane());
  EXPECT_EQ(s.seconds, 5);
  EXPECT_EQ(s.ranks[0].queues[1][0].begin, 1);
  EXPECT_EQ(s.ranks[0].queues[0][1].begin, 4);
  EXPECT_EQ(s.ranks[0].busy, 2);
  EXPECT_EQ(s.ranks[0].bubble, 3);
}

TEST(Simulate, AMeetingBeginsWithTheLastAndEndsTogether) {
  std::vector<Program> programs;
  for (int r = 0; r < 3; ++r) {
    programs.push_back(
        program(r, {{make(Op::kForward, 1), make(Op::kReduce, 7), make(Op::kForward, 2)}}));
    programs.back().queues[0].instructions[0].lane = r;
  }
  // forward 0, 2, 6; the meeting takes 1, 2, 3
  const Simulation s = simulate(programs, seconds_by_lane(true));
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(s.ranks[r].queues[0][1].begin, 6);
    EXPECT_EQ(s.ranks[r].queues[0][1].end, 9);
    EXPECT_EQ(s.ranks[r].exposed, 3);
  }
  EXPECT_EQ(s.ranks[0].bubble, 6);
  EXPECT_EQ(s.ranks[2].bubble, 0);
}

TEST(Simulate, ASendWaitsForItsReceiver) {
  const std::vector<Program> programs = {
      program(0, {{make(Op::kSend, 5, {}, -1, 1), make(Op::kForward, 1)}}),
      program(1, {{make(Op::kForward, 1), make(Op::kForward, 2), make(Op::kRecv, 5, {}, -1, 0)}})};
  const Simulation s = simulate(programs, seconds_by_lane());
  EXPECT_EQ(s.ranks[0].queues[0][0].begin, 2);
  EXPECT_EQ(s.ranks[0].queues[0][0].end, 3);
  EXPECT_EQ(s.ranks[1].queues[0][2].end, 3);
  EXPECT_EQ(s.seconds, 4);
}

TEST(Simulate, ProgramsThatWaitForEachOtherAreNamed) {
  const std::vector<Program> programs = {
      program(0, {{make(Op::kSend, 5, {}, -1, 1), make(Op::kRecv, 6, {}, -1, 1)}}),
      program(1, {{make(Op::kSend, 6, {}, -1, 0), make(Op::kRecv, 5, {}, -1, 0)}})};
  try {
    simulate(programs, seconds_by_lane());
    ADD_FAILURE() << "it ends";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("rank 0 waits for ever"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("Send"), std::string::npos) << e.what();
  }
}

TEST(Simulate, RanksOnOneCoreTakeTurns) {
  std::vector<Program> programs;
  for (int r = 0; r < 4; ++r) programs.push_back(program(r, {{make(Op::kForward, 1)}}));
  programs[3].queues[0].instructions[0].lane = 3;
  CostModel cost = seconds_by_lane();
  cost.pace = [](Resource, int active) { return active <= 2 ? 1.0 : 2.0 / active; };
  // two cores: at half speed until three are done, then alone
  const Simulation s = simulate(programs, cost);
  EXPECT_EQ(s.ranks[0].queues[0][0].end, 2);
  EXPECT_EQ(s.seconds, 4);
  cost.hosts = {0, 0, 1, 1};
  EXPECT_EQ(simulate(programs, cost).seconds, 3);
}

TEST(Simulate, AWeightedProgramStandsForSeveral) {
  std::vector<Program> all, one;
  for (int r = 0; r < 4; ++r)
    all.push_back(program(r, {{make(Op::kForward, 1), make(Op::kReduce, 9)}}));
  one.push_back(all[0]);
  CostModel cost = seconds_by_lane();
  cost.pace = [](Resource, int active) { return 1.0 / active; };
  EXPECT_EQ(simulate(all, cost).seconds, 8);
  EXPECT_EQ(simulate(one, cost, std::vector{4}).seconds, 8);
}

TEST(Simulate, SchedulesHaveTheBubblesOfTheirFormulas) {
  struct Case {
    const char* schedule;
    int stages, chunks, micros;
  };
  CostModel cost;
  cost.work = [](const Program&, const Instruction& i) { return Work{i.lane < 0 ? 0.0 : i.lane}; };
  for (const Case& c : std::vector<Case>{{"gpipe", 4, 1, 8},
                                         {"gpipe", 8, 1, 16},
                                         {"1f1b", 4, 1, 8},
                                         {"1f1b", 8, 1, 32},
                                         {"interleaved", 4, 2, 8},
                                         {"interleaved", 4, 3, 16},
                                         {"interleaved", 8, 2, 16},
                                         {"zero-bubble", 4, 1, 8},
                                         {"zero-bubble", 8, 1, 24},
                                         {"zbv", 4, 2, 8},
                                         {"zbv", 8, 2, 24}}) {
    const Simulation s = simulate(pipeline(c.schedule, c.stages, c.chunks, c.micros), cost);
    double idle = 1 - s.busy_share();
    // from a stage's first cell to its last: the rest is other steps'
    if (std::string(c.schedule) == "zbv") {
      double none = 0, busy = 0;
      for (const RankSimulation& rank : s.ranks)
        none += rank.bubble + rank.exposed, busy += rank.busy;
      idle = none / (none + busy);
    }
    EXPECT_NEAR(idle, bubble_formula(c.schedule, c.stages, c.chunks, c.micros), 1e-9)
        << c.schedule << " on " << c.stages << " stages with " << c.micros << " micro-batches";
  }
}

/// What stands for 256 ranks and what is all of them must be the same to the last bit.
TEST(Simulate, OneRankOfEachRoleStandsForAll256Exactly) {
  struct Case {
    Mesh mesh;
    int zero;
    const char* schedule;
    bool own;
    int hosts = 1;
  };
  for (const Case& c : std::vector<Case>{{{16, 2, 8, 16}, 1, "1f1b", true},
                                         {{16, 2, 8, 16}, 3, "1f1b", true},
                                         {{64, 1, 4, 16}, 2, "gpipe", true},
                                         {{32, 4, 2, 1}, 0, "1f1b", true},
                                         {{8, 4, 8, 8}, 1, "zero-bubble", true},
                                         {{256, 1, 1, 256}, 3, "1f1b", true},
                                         {{64, 1, 4, 16}, 2, "gpipe", true, 16},
                                         {{32, 4, 2, 1}, 0, "1f1b", true, 8},
                                         {{256, 1, 1, 256}, 3, "1f1b", true, 32},
                                         {{16, 4, 4, 16}, 1, "interleaved", false}}) {
    const ModelShape model = test::gpt_model_shape({.layers = 8, .length = 256, .columns = 4});
    MeshOptions options;
    options.mesh = c.mesh, options.zero = c.zero, options.schedule = c.schedule;
    options.chunks = 2;
    options.batch = {256, 1, 1};
    options.hosts = c.hosts;
    const std::vector<std::string> faults = mesh_faults(model, options);
    ASSERT_TRUE(faults.empty()) << faults.front();
    ASSERT_EQ(host_ranks_of(options) > 0, c.hosts > 1);
    CostOptions cost;
    for (int rank = 0; rank < 256; ++rank) cost.hosts.push_back(host_of(rank, 256, c.hosts));
    cost.calibration = default_calibration(DeviceKind::kCpu, 8);
    cost.own_processors = c.own;
    const CostModel model_cost = mesh_cost(model, options, cost);
    const Simulation roles = simulate_roles(model, options, model_cost);
    const Plan plan = plan_mesh(model, options);
    const Simulation all = simulate(plan.programs, model_cost);
    EXPECT_EQ(roles.seconds, all.seconds) << c.schedule << " zero " << c.zero;
    for (size_t stage = 0; stage < roles.ranks.size(); ++stage) {
      const RankSimulation &a = roles.ranks[stage],
                           &b = all.ranks[static_cast<size_t>(roles.ranks[stage].rank)];
      EXPECT_EQ(a.busy, b.busy);
      EXPECT_EQ(a.bubble, b.bubble);
      EXPECT_EQ(a.exposed, b.exposed);
      EXPECT_EQ(a.received, b.received);
    }
  }
}

/// Slices of real units end on borders of chunks, those of the cost model do not: some floats a
/// unit apart.
TEST(Simulate, WhatRanksReceiveIsWhatTheirLinksCarry) {
  struct Case {
    Mesh mesh;
    int zero, hosts = 1;
  };
  for (const auto& [mesh, zero, hosts] : std::vector<Case>{{{4, 1, 1, 4}, 1},
                                                           {{4, 1, 1, 2}, 2},
                                                           {{2, 1, 2, 1}, 0},
                                                           {{2, 1, 2, 2}, 3},
                                                           {{1, 4, 1, 1}, 0},
                                                           {{2, 2, 2, 2}, 1},
                                                           {{4, 1, 1, 4}, 1, 2},
                                                           {{4, 1, 1, 2}, 3, 2},
                                                           {{4, 1, 2, 1}, 0, 4}}) {
    const ModelShape model =
        test::gpt_model_shape({.layers = 2, .width = 256, .hidden = 1024, .columns = 4});
    MeshOptions options;
    options.mesh = mesh, options.zero = zero, options.batch = {4, 1, 1}, options.hosts = hosts;
    const Plan plan = plan_mesh(model, options);
    CostOptions cost;
    cost.calibration = default_calibration(DeviceKind::kCpu, 8);
    const Simulation s = simulate(plan.programs, mesh_cost(model, options, cost));
    const LinkBytes links = link_bytes(plan, model);
    for (int to = 0; to < mesh.ranks(); ++to) {
      double carried = 0, received = 0;
      for (int from = 0; from < mesh.ranks(); ++from)
        carried += static_cast<double>(links[from][to]);
      for (double bytes : s.ranks[static_cast<size_t>(to)].received) received += bytes;
      EXPECT_NEAR(received, carried, 0.01 * carried)
          << "rank " << to << " of data " << mesh.data << " x tensor " << mesh.tensor
          << " x pipeline " << mesh.pipeline << ", zero " << zero << ", hosts " << hosts;
    }
  }
}

TEST(Simulate, SeventyBillionParametersOn4096RanksTakeSeconds) {
  const auto begin = std::chrono::steady_clock::now();
  const ModelShape model = test::gpt_model_shape(test::gpt_70b(8));
  MeshOptions options;
  options.mesh = {64, 8, 8, 64};
  options.zero = 1;
  options.batch = {64, 16, 1};
  ASSERT_TRUE(mesh_faults(model, options).empty());
  CostOptions cost;
  cost.calibration = default_calibration(DeviceKind::kCuda, 1);
  cost.transport = "nccl";
  cost.own_processors = true;
  const Simulation s = simulate_roles(model, options, mesh_cost(model, options, cost));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_LT(seconds, 10);
  ASSERT_EQ(s.ranks.size(), 8u);
  // Not below what the FLOPs alone take, and the pipeline's bubble is near its formula.
  EXPECT_GT(s.seconds, model.flops() * 16 / 64 / cost.calibration.matmul[0]);
  EXPECT_NEAR(s.bubble_share(), bubble_formula("1f1b", 8, 1, 16), 0.1);
}

TEST(Simulate, DataParallelismTakesLessWhereItOverlaps) {
  const ModelShape model = test::gpt_model_shape({.layers = 4, .batch = 4});
  CostOptions cost;
  cost.calibration = default_calibration(DeviceKind::kCpu, 8);
  double seconds[2];
  for (bool overlap : {false, true}) {
    MeshOptions options = data_parallel(4, 4);
    options.overlap = overlap, options.bucket_floats = 0;
    const Simulation s =
        simulate(plan_mesh(model, options).programs, mesh_cost(model, options, cost));
    seconds[overlap] = s.seconds;
    for (const RankSimulation& rank : s.ranks) EXPECT_GT(rank.received[0], 0);
  }
  EXPECT_LT(seconds[1], seconds[0]);
}

TEST(Simulate, DataParallelismReceivesTheBytesOfARing) {
  const ModelShape model = test::gpt_model_shape({.layers = 2});
  CostOptions cost;
  cost.calibration = default_calibration(DeviceKind::kCpu, 4);
  int64_t floats = 0;
  for (const BlockShape& block : model.blocks) floats += block.unit_size;
  for (const bool windows : {true, false}) {  // sums are borrowed, or returned
    MeshOptions options = data_parallel(4, 8);
    options.windows = windows;
    const Simulation s =
        simulate(plan_mesh(model, options).programs, mesh_cost(model, options, cost));
    // Three quarters of the gradient to be reduced, three quarters of the sums.
    EXPECT_NEAR(s.ranks[1].received[0], 2 * 0.75 * 4 * static_cast<double>(floats),
                1e-3 * static_cast<double>(floats));
  }
}

/// Data parallelism on hosts of two: a host's sum of a quarter leaves it, and the finished quarter.
TEST(Simulate, DataParallelHostsExchangeOneSum) {
  const ModelShape model = test::gpt_model_shape({.layers = 2, .width = 256, .hidden = 1024});
  double bytes = 0;
  for (const BlockShape& block : model.blocks) bytes += 4.0 * static_cast<double>(block.unit_size);
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 1, 1}, {0, 0, 0, 1}, {}}) {
    CostOptions cost;
    cost.calibration = default_calibration(DeviceKind::kCpu, 8);
    cost.hosts = hosts;
    MeshOptions options = data_parallel(4, 4);
    options.hosts = hosts_in_order(hosts);
    options.windows = hosts.empty() || options.hosts > 1;
    const Simulation s =
        simulate(plan_mesh(model, options).programs, mesh_cost(model, options, cost));
    const bool two_levels = hosts == std::vector<int>{0, 0, 1, 1};  // unequal hosts have one
    for (const RankSimulation& rank : s.ranks) {
      EXPECT_NEAR(rank.link[static_cast<size_t>(Axis::kHosts)], two_levels ? bytes / 2 : 0,
                  bytes / 20);
      // Inside a host half of the gradient is summed and half of the sums are read; in one level
      // three quarters each.
      EXPECT_NEAR(rank.received[static_cast<size_t>(Axis::kData)],
                  two_levels ? bytes : bytes * 3 / 2, bytes / 20);
    }
  }
}

}  // namespace tutti
