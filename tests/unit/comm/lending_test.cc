// What is lent stays as it is until every borrower has released it.
#include "comm/lending.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/pulls.h"
#include "support/transports.h"

namespace tutti {
namespace {

using namespace testing_support;

/// Parcel 0 has units 0 and 1, parcel 1 unit 2. Rank 0 lends unit 0 to rank 1 and unit 1 to rank 2;
/// rank 1 lends unit 2 to rank 2 alone.
Plan lending_plan() {
  Plan plan;
  plan.ranks = 3;
  plan.parcels = {{{0, {0, 64}}, {1, {0, 64}}}, {{2, {0, 64}}}};
  const auto acquire = [](int parcel) {
    Instruction i;
    i.op = Op::kAcquire, i.parcel = parcel;
    return i;
  };
  const auto borrow = [](int unit, int owner) {
    Instruction i;
    i.op = Op::kUpdate, i.block = unit;
    i.operands.push_back({OperandRole::kGradient, Access::kRead, 0, unit, {0, 64}, owner});
    return i;
  };
  for (int r = 0; r < 3; ++r) {
    Program program;
    program.rank = r;
    program.queues.push_back({"compute", {}});
    plan.programs.push_back(program);
  }
  plan.programs[0].queues[0].instructions = {acquire(0)};
  plan.programs[1].queues[0].instructions = {acquire(1), borrow(0, 0)};
  plan.programs[2].queues[0].instructions = {borrow(1, 0), borrow(2, 1)};
  return plan;
}

const std::vector<TransportCase> kWindows{
    {"inproc", "inproc", true}, {"shm_threads", "shm", true}, {"shm_processes", "shm", false}};

class Lendings : public testing::TestWithParam<TransportCase> {};
INSTANTIATE_TEST_SUITE_P(Over, Lendings, testing::ValuesIn(kWindows),
                         [](const auto& info) { return info.param.name; });

TEST_P(Lendings, TheFirstStepWaitsForNobody) {
  over(
      GetParam(), 3,
      [](TestRank& me) {
        const Plan plan = lending_plan();
        Lending lending(plan, me.rank, me.transport);
        lending.acquire(0, 0, me.soon());
      },
      4096);
}

TEST_P(Lendings, ALenderWaitsForEveryBorrowerAndNamesTheOneThatIsMissing) {
  const Plan plan = lending_plan();
  for (int missing : {1, 2})
    over(
        GetParam(), 3,
        [&](TestRank& me) {
          Lending lending(plan, me.rank, me.transport);
          for (uint64_t step = 0; step < 4; ++step)
            if (me.rank != missing || step < 3) lending.release(0, step);
          if (me.rank != 0) return;
          for (uint64_t step = 0; step <= 3; ++step) lending.acquire(0, step, me.soon());
          try {
            lending.acquire(0, 4, me.clock.after(std::chrono::milliseconds(200)));
            ADD_FAILURE() << "rank " << missing << " had not released it";
          } catch (const CommError& e) {
            EXPECT_EQ(e.failure().operation, "acquire parcel 0") << e.what();
            EXPECT_EQ(e.failure().peer, missing) << e.what();
            EXPECT_EQ(e.failure().sequence, 4U);
          }
        },
        4096);
}

TEST_P(Lendings, NobodyWaitsForARankThatBorrowsNothing) {
  const Plan plan = lending_plan();
  over(
      GetParam(), 3,
      [&](TestRank& me) {
        Lending lending(plan, me.rank, me.transport);
        if (me.rank == 2) lending.release(1, 0);
        if (me.rank == 1) lending.acquire(1, 1, me.soon());  // rank 0 never releases it
      },
      4096);
}

TEST_P(Lendings, WhatIsBorrowedDoesNotChangeUntilItIsReleased) {
  const Plan plan = lending_plan();
  constexpr int kFloats = 1000, kSteps = 400;
  const auto value = [](uint64_t step, int i) {
    return static_cast<float>(step * kFloats + static_cast<uint64_t>(i));
  };
  over(
      GetParam(), 3,
      [&](TestRank& me) {
        Lending lending(plan, me.rank, me.transport);
        const int ready = flag_of(0, kSumReady);
        for (uint64_t step = 0; step < kSteps; ++step) {
          lending.acquire(0, step, me.soon());
          if (me.rank == 0) {
            auto* mine = reinterpret_cast<float*>(me.transport.window().data());
            for (int i = 0; i < kFloats; ++i) mine[i] = value(step, i);
            me.transport.raise(ready, step + 1);
            continue;
          }
          me.transport.await(0, ready, step + 1, me.soon(), "the lender");
          if (step % 50 == static_cast<uint64_t>(me.rank))
            me.clock.sleep(std::chrono::milliseconds(1), nullptr);
          const auto* lent = reinterpret_cast<const float*>(me.transport.window_of(0).data());
          int wrong = 0;
          for (int i = 0; i < kFloats; ++i) wrong += lent[i] != value(step, i);
          ASSERT_EQ(wrong, 0) << "step " << step << " rank " << me.rank;
          lending.release(0, step);
        }
      },
      4096);
}

}  // namespace
}  // namespace tutti
