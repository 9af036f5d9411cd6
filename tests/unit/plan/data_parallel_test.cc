// Data parallelism: how a sum that every rank wants whole comes to it, and that all ways give one
// rank's values.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "plan/check/prove.h"
#include "plan/search/link_bytes.h"
#include "unit/plan/mesh_runner.h"
#include "unit/plan/sample_meshes.h"

namespace tutti {

using test::mesh_model;
using test::MeshModel;
using test::MeshRunner;
using test::MeshValues;

namespace {

const MeshModel kTied{4, 1, true}, kConsuming{5, 1, false, true, true};

struct Planned : test::PlannedMesh {
  Planned(const MeshModel& m, int ranks, Batch batch,
          const std::function<void(MeshOptions&)>& set = {})
      : PlannedMesh(mesh_model(m), {ranks, 1, 1, 1}, 0, batch) {
    if (set) set(options);
    plan = plan_mesh(model, options);
    const auto faults = prove(plan, model);
    EXPECT_TRUE(faults.empty()) << faults[0];
  }
  std::vector<const Instruction*> all(int rank, Op op) const {
    std::vector<const Instruction*> found;
    for (const Queue& queue : plan.programs[rank].queues)
      for (const Instruction& i : queue.instructions)
        if (i.op == op) found.push_back(&i);
    return found;
  }
  /// Whose memory the Updates of a rank read gradients of, itself among them.
  std::set<int> read_of(int rank) const {
    std::set<int> ranks;
    for (const Instruction* update : all(rank, Op::kUpdate))
      for (const Operand* gradient : operands_of(*update, OperandRole::kGradient))
        ranks.insert(gradient->rank < 0 ? rank : gradient->rank);
    return ranks;
  }
  int64_t bytes() const {
    int64_t floats = 0;
    for (const BlockShape& block : model.blocks) floats += block.unit_size;
    return floats * static_cast<int64_t>(sizeof(float));
  }
};

/// All the ways that data parallelism and its slices can be planned in.
std::vector<MeshOptions> layouts(int ranks, Batch batch) {
  std::vector<MeshOptions> list;
  for (int zero = 0; zero <= 3; ++zero)
    for (int reach = 0; reach < 3; ++reach)
      for (int hosts : {1, 2})
        for (int64_t merged : {0, 9000, 1 << 20})
          for (bool root : {false, true}) {
            if (root && zero > 0) continue;
            MeshOptions o;
            o.mesh = {ranks, 1, 1, zero > 0 ? ranks : 1};
            o.batch = batch, o.zero = zero, o.hosts = hosts, o.bucket_floats = merged,
            o.fold = root ? FoldKind::kRoot : FoldKind::kLocal;
            o.windows = reach != 1, o.device = reach == 2;
            list.push_back(o);
          }
  return list;
}

MeshValues values_of(const Plan& plan, const ModelShape& model, int steps, uint64_t seed) {
  std::string problem;
  MeshRunner runner(plan, model, seed);
  EXPECT_EQ(runner.run(steps), "");
  MeshValues values = runner.state(problem);
  EXPECT_EQ(problem, "");
  return values;
}

void expect_values_of_one_rank(const MeshModel& m, int ranks) {
  const ModelShape model = mesh_model(m);
  for (const Batch& batch :
       {Batch{ranks, 1, 1}, Batch{ranks + 1, 2, 1}, Batch{2 * ranks + 1, 1, 1}}) {
    MeshOptions one;
    one.batch = batch;
    const MeshValues expected = values_of(plan_mesh(model, one), model, 3, 0);
    for (const MeshOptions& o : layouts(ranks, batch)) {
      SCOPED_TRACE(test::name_of(m, o));
      const Plan plan = plan_mesh(model, o);
      const auto faults = prove(plan, model);
      ASSERT_TRUE(faults.empty()) << faults[0];
      ASSERT_TRUE(values_of(plan, model, 3, static_cast<uint64_t>(ranks)) == expected);
    }
  }
}

}  // namespace

TEST(DataParallel, TwoRanksGiveTheValuesOfOne) { expect_values_of_one_rank(kTied, 2); }
TEST(DataParallel, ThreeRanksGiveTheValuesOfOne) { expect_values_of_one_rank(kConsuming, 3); }
TEST(DataParallel, FourRanksGiveTheValuesOfOne) { expect_values_of_one_rank(kTied, 4); }

TEST(DataParallel, OnOneHostEveryRankBorrowsTheSlicesOfTheOthers) {
  const Planned p(kTied, 3, {3, 1, 1});
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(p.read_of(rank), (std::set<int>{0, 1, 2}));
    EXPECT_TRUE(p.all(rank, Op::kGather).empty());
    EXPECT_EQ(p.all(rank, Op::kAcquire).size(), p.all(rank, Op::kReduce).size());
    EXPECT_EQ(p.all(rank, Op::kRelease).size(), p.all(rank, Op::kReduce).size());
    for (const Instruction* update : p.all(rank, Op::kUpdate))
      for (const Operand* gradient : operands_of(*update, OperandRole::kGradient)) {
        const int owner = gradient->rank < 0 ? rank : gradient->rank;
        EXPECT_EQ(gradient->range, range_of(p.plan.ownership[update->block].sums, owner));
        EXPECT_EQ(p.plan.programs[owner].buffers[gradient->buffer].unit, update->block);
      }
  }
  for (const SumTransfer& sum : p.plan.sums) EXPECT_EQ(sum.returned, Return::kNone);
}

TEST(DataParallel, WhatIsLentIsAcquiredFirstAndReleasedAfterTheParcelsLastUpdate) {
  const Planned p(kConsuming, 2, {2, 1, 1}, [](MeshOptions& o) { o.bucket_floats = 9000; });
  const Program& program = p.plan.programs[1];
  const auto& data = program.queues[1];
  ASSERT_EQ(data.use, QueueUse::kData);
  const size_t acquires = p.all(1, Op::kAcquire).size();
  ASSERT_GT(acquires, 1u);
  for (size_t k = 0; k < acquires; ++k) {
    EXPECT_EQ(data.instructions[k].op, Op::kAcquire);
    EXPECT_TRUE(data.instructions[k].waits.empty());
  }
  std::map<int, int> open;  // by parcel: units that are not updated yet
  std::map<int, int> parcel_of;
  for (const Instruction* reduce : p.all(1, Op::kReduce))
    for (const UnitRange& part : p.plan.parcels[reduce->parcel])
      ++open[reduce->parcel], parcel_of[part.unit] = reduce->parcel;
  for (const Instruction& i : program.queues[0].instructions) {
    if (i.op == Op::kUpdate) --open[parcel_of.at(i.block)];
    if (i.op == Op::kRelease) EXPECT_EQ(open.at(i.parcel), 0);
  }
}

TEST(DataParallel, WithoutWindowsTheSumsAreReturned) {
  const Planned p(kTied, 3, {3, 1, 1}, [](MeshOptions& o) { o.windows = false; });
  for (const SumTransfer& sum : p.plan.sums) EXPECT_EQ(sum.returned, Return::kBlocks);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(p.read_of(rank), std::set<int>{rank});
    for (Op op : {Op::kGather, Op::kAcquire, Op::kRelease})
      EXPECT_TRUE(p.all(rank, op).empty()) << op_name(op);
  }
}

TEST(DataParallel, DevicesAndSumsOfSeveralRoundsGatherGradients) {
  const auto on_devices = [](MeshOptions& o) { o.device = true; };
  const auto by_owners = [](MeshOptions& o) { o.fold = FoldKind::kOwner; };
  for (const auto& set : {std::function<void(MeshOptions&)>(on_devices),
                          std::function<void(MeshOptions&)>(by_owners)}) {
    const Planned p(kTied, 2, {4, 1, 1}, set);
    EXPECT_FALSE(p.all(0, Op::kGather).empty());
    for (const CopyTransfer& copies : p.plan.copies)
      EXPECT_TRUE(copies.gradients && !copies.updated);
    EXPECT_EQ(p.read_of(1), std::set<int>{1});
    EXPECT_TRUE(p.all(0, Op::kAcquire).empty());
  }
}

TEST(DataParallel, ARootMakesAllSumsAndAllBorrowThem) {
  const Planned p(kTied, 3, {3, 1, 1}, [](MeshOptions& o) { o.fold = FoldKind::kRoot; });
  for (const Ownership& unit : p.plan.ownership) {
    EXPECT_EQ(unit.sums.front().ranks, std::vector<int>{0});
    for (size_t k = 1; k < unit.sums.size(); ++k) EXPECT_TRUE(unit.sums[k].range.empty());
  }
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(p.read_of(rank), std::set<int>{0});
}

TEST(DataParallel, ARingHasNoOrderAndReturnsItsSums) {
  const Planned ring(kTied, 2, {2, 1, 1}, [](MeshOptions& o) { o.ring = true; }),
      tree(kTied, 2, {2, 1, 1});
  for (const SumTransfer& sum : ring.plan.sums)
    EXPECT_TRUE(!sum.ordered && sum.returned == Return::kBlocks);
  for (const SumTransfer& sum : tree.plan.sums) EXPECT_TRUE(sum.ordered);
}

TEST(DataParallel, AParcelIsReducedWhileLaterBlocksStillRunBackward) {
  const Planned p({4, 1, false}, 2, {2, 1, 1}, [](MeshOptions& o) { o.bucket_floats = 0; });
  const Instruction& reduce = *p.all(0, Op::kReduce).front();
  ASSERT_FALSE(reduce.waits.empty());
  const auto& compute = p.plan.programs[0].queues[0].instructions;
  const auto last = std::find_if(compute.rbegin(), compute.rend(), [&](const Instruction& i) {
    return std::find(reduce.waits.begin(), reduce.waits.end(), i.signal) != reduce.waits.end();
  });
  ASSERT_NE(last, compute.rend());
  EXPECT_TRUE(std::any_of(last.base(), compute.end(),
                          [](const Instruction& i) { return i.op == Op::kBackward; }));
}

TEST(DataParallel, WithoutOverlapThereIsOneQueueAndNoEvent) {
  const Planned p(kTied, 2, {4, 2, 1}, [](MeshOptions& o) { o.overlap = false; });
  for (const Program& program : p.plan.programs) {
    EXPECT_EQ(program.queues.size(), 1u);
    EXPECT_EQ(program.events, 0);
  }
}

TEST(DataParallel, ALaneThatIsFoldedAtOnceNeedsScratchAloneAndWhatOthersWriteScratchOfItsOwn) {
  const auto scratch = [](const Plan& plan) {
    std::vector<int> units;
    for (const Buffer& b : plan.programs[0].buffers)
      if (b.kind == BufferKind::kGradient && b.level < 0) units.push_back(b.unit);
    std::sort(units.begin(), units.end());
    return units;
  };
  const auto levels = [](const Plan& plan) {
    int most = -1;
    for (const Buffer& b : plan.programs[0].buffers) most = std::max(most, b.level);
    return most + 1;
  };
  const Planned two({4, 1, false}, 1, {2, 1, 1}), tied(kTied, 1, {2, 2, 1}),
      four({4, 1, false}, 1, {4, 1, 1});
  EXPECT_EQ(scratch(two.plan), std::vector<int>{-1});
  EXPECT_EQ(levels(two.plan), 1);
  EXPECT_EQ(scratch(tied.plan), (std::vector<int>{-1, 0}));
  EXPECT_EQ(levels(four.plan), 2);
}

TEST(DataParallel, OnSeveralHostsRanksBorrowInsideTheirsAlone) {
  const Planned p({4, 1, false}, 4, {4, 1, 1}, [](MeshOptions& o) { o.hosts = 2; });
  for (int rank = 0; rank < 4; ++rank) {
    const int first = rank / 2 * 2;
    EXPECT_EQ(p.read_of(rank), (std::set<int>{first, first + 1}));
  }
  for (const SumTransfer& sum : p.plan.sums) EXPECT_TRUE(sum.by_hosts);
}

TEST(DataParallel, WhatIsBorrowedOrReturnedCountsOnItsLink) {
  for (bool windows : {true, false}) {
    const Planned p({4, 1, false}, 2, {2, 1, 1}, [&](MeshOptions& o) { o.windows = windows; });
    const LinkBytes links = link_bytes(p.plan, p.model);
    // A slice of my gradient goes to its owner, and my slice of the sum to the other.
    EXPECT_EQ(links[0][1], p.bytes());
    EXPECT_EQ(links[1][0], p.bytes());
  }
}

TEST(DataParallel, TheLoaderLendsItsMemoryWhereOneMicroBatchIsInWork) {
  const auto lent = [](const Plan& plan) {
    int count = 0;
    for (const Buffer& buffer : plan.programs[0].buffers) count += buffer.lent ? 1 : 0;
    return count;
  };
  EXPECT_EQ(lent(Planned(kTied, 2, {2, 2, 1}).plan), 2);
  EXPECT_EQ(lent(Planned(kTied, 2, {2, 2, 1}, [](MeshOptions& o) { o.device = true; }).plan), 0);
  MeshOptions stages;
  stages.mesh.pipeline = 2, stages.batch = {1, 4, 1}, stages.schedule = "gpipe";
  EXPECT_EQ(lent(plan_mesh(mesh_model(kTied), stages)), 0);
}

TEST(DataParallel, GradientsTakeTheMemoryOfInputsThatAreConsumed) {
  const Planned p(kConsuming, 2, {2, 1, 1});
  int consumed = 0;
  for (Op op : {Op::kForward, Op::kBackward})
    for (const Instruction* i : p.all(0, op)) {
      const auto& inputs = p.model.blocks[i->block].segments[i->segment].inputs;
      for (size_t k = 0; k < inputs.size(); ++k) {
        const bool takes = k < i->flow.grad_in.size() && i->flow.grad_in[k] == i->flow.in[k];
        EXPECT_EQ(takes, inputs[k].consumed) << to_string(*i);
        consumed += takes ? 1 : 0;
      }
    }
  EXPECT_GT(consumed, 4);
}

TEST(DataParallel, WhatIsComputedAgainOrInPartsOrForEvaluationConsumesNothing) {
  const auto consumes = [](MeshOptions o) {
    const ModelShape model = mesh_model(kConsuming);
    o.batch = {2, 2, 1};
    const Plan plan = plan_mesh(model, o);
    EXPECT_TRUE(prove(plan, model).empty());
    std::set<int> layers;
    for (const Program& program : plan.programs)
      for (const Instruction& i : program.queues[0].instructions)
        if (i.op == Op::kForward && !i.flow.grad_in.empty()) layers.insert(i.block);
    return layers;
  };
  MeshOptions plain, selective, full, parts, evaluation;
  selective.recompute = Recompute::kSelective, full.recompute = Recompute::kFull;
  parts.mesh.pipeline = 2, parts.schedule = "zero-bubble";
  evaluation.forward_only = true;
  EXPECT_EQ(consumes(plain), (std::set<int>{1, 2, 3, 4}));
  // elsewhere what is read or written is computed again
  EXPECT_EQ(consumes(selective), std::set<int>{4});
  EXPECT_EQ(consumes(full), std::set<int>{4});
  EXPECT_EQ(consumes(parts), std::set<int>{});
  EXPECT_EQ(consumes(evaluation), std::set<int>{});
}

}  // namespace tutti
