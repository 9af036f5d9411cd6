#include "plan/make/ddp.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "plan/check/ddp.h"
#include "unit/plan/plan_runner.h"
#include "unit/plan/sample_models.h"

namespace tutti {

using test::PlanRunner;
using test::sample_model;

namespace {

DdpOptions options_of(int ranks, int lanes, int micro_batches) {
  DdpOptions options;
  options.ranks = ranks;
  options.lanes = lanes;
  options.micro_batches = micro_batches;
  options.bucket_floats = 1;
  return options;
}

/// Calls f(model, options) for every small case.
template <typename F>
void for_all_small_cases(F f) {
  for (int lanes = 1; lanes <= 9; ++lanes) {
    for (int ranks = 1; ranks <= lanes; ++ranks) {
      for (int micro_batches = 1; micro_batches <= 3; ++micro_batches) {
        for (int blocks = 1; blocks <= 5; ++blocks) {
          for (bool tied : {false, true}) {
            for (bool overlap : {true, false}) {
              DdpOptions options = options_of(ranks, lanes, micro_batches);
              options.overlap = overlap;
              options.bucket_floats = blocks % 2 == 0 ? 1 : 100;
              f(sample_model(blocks, tied), options);
              if (::testing::Test::HasFailure()) return;
            }
          }
        }
      }
    }
  }
}

std::string name(const ModelShape& model, const DdpOptions& o) {
  return fmt::format("{} lanes, {} ranks, {} micro-batches, {} blocks, tied {}, overlap {}", o.lanes, o.ranks,
                     o.micro_batches, model.blocks.size(), !model.blocks.back().writes_units.empty(), o.overlap);
}

}  // namespace

TEST(Ddp, EverySmallPlanPassesTheChecker) {
  for_all_small_cases([](const ModelShape& model, const DdpOptions& options) {
    const auto faults = check_plan(plan_ddp(model, options), model, options.micro_batches);
    EXPECT_TRUE(faults.empty()) << name(model, options) << "\n" << fmt::format("{}", fmt::join(faults, "\n"));
  });
}

TEST(Ddp, EverySmallPlanRunsToTheJobsSumInARandomInterleaving) {
  uint64_t seed = 20261115;
  for_all_small_cases([&seed](const ModelShape& model, const DdpOptions& options) {
    ++seed;
    PlanRunner runner(plan_ddp(model, options), model, options.micro_batches, seed % 2 == 0, seed);
    const auto problems = runner.run(2);
    EXPECT_TRUE(problems.empty()) << name(model, options) << ", seed " << seed << "\n"
                                  << fmt::format("{}", fmt::join(problems, "\n"));
  });
}

TEST(Ddp, UnitsAreMergedUntilABucketIsFull) {
  const ModelShape model = sample_model(5, false);  // gradients of 32, 32, 48, 0, 48 floats: kAlign each
  DdpOptions options = options_of(1, 1, 1);
  options.bucket_floats = kAlign + 1;
  const Plan plan = plan_ddp(model, options);
  ASSERT_EQ(plan.buckets.size(), 2u);
  EXPECT_EQ(plan.buckets[0].units, (std::vector<int>{4, 2}));
  EXPECT_EQ(plan.buckets[0].unit_offset, (std::vector<int64_t>{0, kAlign}));
  EXPECT_EQ(plan.buckets[0].partial_size, 2 * kAlign);
  EXPECT_EQ(plan.buckets[1].units, (std::vector<int>{1, 0}));
}

TEST(Ddp, OneRankHasTheSameQueuesAndCommunicationAsMany) {
  const ModelShape model = sample_model(3, false);
  const auto comm = [](const Program& program) {
    std::vector<std::string> list;
    for (const Instruction& i : program.queues.at(1).instructions) list.push_back(to_string(i));
    return list;
  };
  const Plan one = plan_ddp(model, options_of(1, 4, 1)), two = plan_ddp(model, options_of(2, 4, 1));
  EXPECT_EQ(comm(one.programs[0]), comm(two.programs[0]));
  EXPECT_EQ(comm(two.programs[0]), comm(two.programs[1]));
}

TEST(Ddp, ABucketIsReducedWhileLaterBlocksStillRunBackward) {
  const Plan plan = plan_ddp(sample_model(3, false), options_of(2, 4, 1));
  const Program& program = plan.programs[0];
  const auto& data = program.queues[1].instructions;
  const auto reduce = std::find_if(data.begin(), data.end(), [](const Instruction& i) { return i.op == Op::kReduce; });
  ASSERT_EQ(reduce->waits.size(), 1u);
  const auto& compute = program.queues[0].instructions;
  size_t signaller = 0;
  while (compute[signaller].signal != reduce->waits[0]) ++signaller;
  const bool more = std::any_of(compute.begin() + static_cast<std::ptrdiff_t>(signaller) + 1, compute.end(),
                                [](const Instruction& i) { return i.op == Op::kBackward; });
  EXPECT_TRUE(more) << to_string(program);
}

TEST(Ddp, WithoutOverlapThereIsOneQueueAndNoEvent) {
  DdpOptions options = options_of(2, 4, 2);
  options.overlap = false;
  for (const Program& program : plan_ddp(sample_model(3, true), options).programs) {
    EXPECT_EQ(program.queues.size(), 1u);
    EXPECT_EQ(program.events, 0);
  }
}

TEST(Ddp, ALaneThatIsFoldedAwayAtOnceNeedsOnlyTheSharedScratch) {
  const ModelShape model = sample_model(3, false);
  const Plan plan = plan_ddp(model, options_of(1, 2, 1));
  int scratch = 0, levels = 0;
  for (const Buffer& b : plan.programs[0].buffers) {
    if (b.kind != BufferKind::kGradient) continue;
    if (b.level < 0) {
      ++scratch;
      EXPECT_EQ(b.bytes, kAlign * 4);  // the largest unit
    } else {
      levels = std::max(levels, b.level + 1);
    }
  }
  EXPECT_EQ(scratch, 1);
  EXPECT_EQ(levels, 1);
}

TEST(Ddp, AUnitWithForeignWritersHasScratchOfItsOwn) {
  const ModelShape model = sample_model(3, true);
  const Plan plan = plan_ddp(model, options_of(1, 2, 2));
  std::vector<int> units;
  for (const Buffer& b : plan.programs[0].buffers) {
    if (b.kind == BufferKind::kGradient && b.level < 0) units.push_back(b.unit);
  }
  std::sort(units.begin(), units.end());
  EXPECT_EQ(units, (std::vector<int>{-1, 0}));
}

TEST(Ddp, TheForecastCountsEveryKind) {
  const ModelShape model = sample_model(2, false);  // units of kAlign floats each; segments 1 and 2
  DdpOptions options = options_of(1, 4, 1);
  options.data_bytes = 77;
  const MemoryForecast f = forecast_memory(plan_ddp(model, options).programs[0]);
  const auto of = [&f](BufferKind kind) { return f.bytes[static_cast<int>(kind)]; };
  EXPECT_EQ(of(BufferKind::kParameter), 2 * kAlign * 4);
  EXPECT_EQ(of(BufferKind::kMoment), 4 * kAlign * 4);
  // Four lanes: a partial in the window, one private gradient for lanes 2 and 3, scratch for the larger unit.
  EXPECT_EQ(of(BufferKind::kGradient), (2 + 2 + 1) * kAlign * 4);
  EXPECT_EQ(of(BufferKind::kSaved), 1000 + 1001 + 1001);
  EXPECT_EQ(of(BufferKind::kBorder), 64 + 128 + 128 + 2 * 128);
  EXPECT_EQ(of(BufferKind::kWork), 300);
  EXPECT_EQ(of(BufferKind::kData), 77);
  EXPECT_EQ(f.total(), (2 + 4 + 5) * kAlign * 4 + 3002 + 576 + 300 + 77);
}

TEST(Ddp, TheForecastCountsNoGradientOfAConsumedBorder) {
  ModelShape model = sample_model(2, false);
  SegmentShape& last = model.blocks[1].segments[1];
  last.border_bytes = 8;
  const auto borders = [&] {
    return forecast_memory(plan_ddp(model, options_of(1, 4, 1)).programs[0])
        .bytes[static_cast<int>(BufferKind::kBorder)];
  };
  EXPECT_EQ(borders(), 64 + 128 + 8 + 2 * 128);
  last.inputs.push_back({.data = false, .index = 0, .wanted = true, .grad_bytes = 128, .consumed = true});
  EXPECT_EQ(borders(), 64 + 128 + 8 + 2 * 64);
}

}  // namespace tutti
