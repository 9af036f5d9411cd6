#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "plan/check/ddp.h"
#include "plan/make/ddp.h"
#include "unit/plan/sample_models.h"

namespace tutti {

using test::sample_model;

namespace {

/// A plan of two ranks with two lanes each, three blocks tied, a bucket per unit, to be damaged.
struct Damaged {
  ModelShape model = sample_model(3, true);
  int micro_batches;
  Plan plan;

  explicit Damaged(int micro_batches_ = 1, bool overlap = true) : micro_batches(micro_batches_) {
    DdpOptions options;
    options.ranks = 2, options.lanes = 4, options.micro_batches = micro_batches, options.bucket_floats = 1;
    options.overlap = overlap;
    plan = plan_ddp(model, options);
  }
  std::vector<Instruction>& queue(int rank, int q) { return plan.programs[rank].queues[q].instructions; }
  /// The n-th instruction of an op on a queue.
  size_t find(int rank, int q, Op op, int n = 0) {
    for (size_t i = 0; i < queue(rank, q).size(); ++i) {
      if (queue(rank, q)[i].op == op && n-- == 0) return i;
    }
    ADD_FAILURE() << "no " << op_name(op);
    return 0;
  }
  Instruction& get(int rank, int q, Op op, int n = 0) { return queue(rank, q)[find(rank, q, op, n)]; }
  void drop(int rank, int q, Op op, int n = 0) {
    queue(rank, q).erase(queue(rank, q).begin() + static_cast<std::ptrdiff_t>(find(rank, q, op, n)));
  }
  /// Some fault contains all the texts.
  void expect(std::vector<std::string> texts) {
    const auto faults = check_plan(plan, model, micro_batches);
    for (const std::string& fault : faults) {
      bool all = true;
      for (const std::string& text : texts) all &= fault.find(text) != std::string::npos;
      if (all) return;
    }
    ADD_FAILURE() << "no fault says '" << fmt::format("{}", fmt::join(texts, "' and '")) << "' among\n"
                  << fmt::format("{}", fmt::join(faults, "\n"));
  }
};

}  // namespace

TEST(Check, APlanThatIsWholeHasNoFaults) {
  Damaged d;
  EXPECT_TRUE(check_plan(d.plan, d.model, 1).empty());
}

TEST(Check, AnotherNumberOfMicroBatchesIsNotTheJob) {
  Damaged d;
  d.micro_batches = 2;
  d.expect({"rank 0: Load lane 0 micro 1 is missing"});
  d.expect({"Update unit 2", "the job says (((0.0 + 0.1)"});
}

TEST(Check, MeetingsInAnotherOrderNameBothInstructions) {
  Damaged d;
  auto& data = d.queue(1, 1);
  std::swap(data[d.find(1, 1, Op::kReduce, 0)], data[d.find(1, 1, Op::kReduce, 1)]);
  d.expect({"rank 1 queue data #3 Reduce bucket 1", "meets", "rank 0 queue data #3 Reduce bucket 0"});
}

TEST(Check, AMeetingThatARankLacksIsFound) {
  Damaged d(1, false);
  d.drop(1, 0, Op::kVote);
  d.expect({"rank 1 queue compute", "instructions meet others"});
}

TEST(Check, AnEventNobodySignalsIsFound) {
  Damaged d;
  d.get(0, 1, Op::kAcquire).signal = -1;
  d.expect({"waits for event 0, which is signalled 0 times"});
}

TEST(Check, ACircleOfWaitsIsADeadlock) {
  Damaged d;
  // The reduce of bucket 0 waits for its units; let the first load wait for the vote behind it.
  d.get(1, 0, Op::kLoad).waits = {d.get(1, 1, Op::kVote).signal};
  d.expect({"deadlock", "rank 1 queue compute #0 Load lane 2 micro 0", "rank 1 queue data #3 Reduce bucket 0"});
}

TEST(Check, ADeadlockOverTwoRanksIsFound) {
  Damaged d;
  // Two queues of meetings, entered in opposite orders: each rank's second queue waits for its first, and the other way
  // round.
  for (int rank : {0, 1}) {
    Program& program = d.plan.programs[rank];
    program.queues.push_back({"more", {}});
    Instruction vote;
    vote.op = Op::kVote, vote.id = 5000;
    vote.signal = program.events++;
    if (rank == 0) vote.waits = {d.get(0, 1, Op::kVote).signal};
    if (rank == 1) d.get(1, 1, Op::kVote).waits = {vote.signal};
    program.queues.back().instructions.push_back(vote);
  }
  d.expect({"deadlock", "rank 0 queue more #0 Vote", "rank 1 queue data #12 Vote"});
}

TEST(Check, AReduceThatDoesNotWaitForItsGradientIsARace) {
  Damaged d;
  d.get(0, 1, Op::kReduce, 1).waits.clear();
  d.expect({"rank 0", "Reduce bucket 1", "are not ordered"});
}

TEST(Check, ABackwardThatDoesNotWaitForItsWindowIsARace) {
  Damaged d;
  d.get(1, 0, Op::kBackward).waits.clear();
  d.expect({"Acquire bucket 0", "Backward block 2.0 lane 2", "are not ordered"});
}

TEST(Check, AnUpdateBeforeTheVoteIsFoundThoughItsGradientIsThere) {
  Damaged d(1, false);
  for (int rank : {0, 1}) std::swap(d.get(rank, 0, Op::kVote), d.get(rank, 0, Op::kUpdate));
  d.expect({"rank 0 queue compute", "Update unit 2", "does not follow the vote"});
}

TEST(Check, AWriteIntoAWindowThatAPeerStillReadsIsARace) {
  Damaged d(1, false);
  // In order on its own rank, but rank 1's Update reads the reduced slice out of rank 0's window.
  auto& list = d.queue(0, 0);
  Instruction late;
  late.op = Op::kFold, late.id = 9000, late.block = 2;
  const int partial = d.get(0, 0, Op::kReduce).writes[0];
  late.adds = {{partial, partial}};
  list.insert(list.end() - 1, late);
  d.expect({"Fold unit 2", "rank 1 queue compute", "Update unit 2", "are not ordered"});
}

TEST(Check, ALostTermIsShownInTheSum) {
  Damaged d(1, false);
  d.drop(0, 0, Op::kFold);
  d.expect({"Update unit 2", "gives (0.0 + (2.0 + 3.0)), the job says ((0.0 + 1.0) + (2.0 + 3.0))"});
}

TEST(Check, ADoubledTermIsShownInTheSum) {
  Damaged d;
  Instruction& fold = d.get(0, 0, Op::kFold);
  fold.adds.push_back(fold.adds[0]);
  d.expect({"Update unit 2", "gives (((0.0 + 1.0) + 1.0) + (2.0 + 3.0))"});
}

TEST(Check, AnAdditionWhoseSumIsLostIsFound) {
  Damaged d(2, false);
  const auto& buffers = d.plan.programs[0].buffers;
  const auto number = [&buffers](const std::string& name) {
    return static_cast<int>(
        std::find_if(buffers.begin(), buffers.end(), [&](const Buffer& b) { return b.name == name; }) -
        buffers.begin());
  };
  Instruction useless;
  useless.op = Op::kFold, useless.id = 9000, useless.block = 0;
  useless.adds = {{number("private 1 of 0"), number("scratch 0")}};
  d.queue(0, 0).push_back(useless);
  d.expect({"rank 0: nobody reads what 'private 1 of 0' ends with"});
}

TEST(Check, ReorderedMicroBatchesAreAnotherSum) {
  Damaged d(3);
  // Rank 0, lane 0: micro 1 and 2 of the last block change places in all but name.
  auto& list = d.queue(0, 0);
  for (Instruction& i : list) {
    if (i.lane == 0 && i.micro > 0) i.micro = 3 - i.micro;
  }
  d.expect({"gives", "((0.0 + 0.2) + 0.1)"});
}

TEST(Check, ALostGradientOfASharedParameterIsFound) {
  Damaged d;
  d.get(0, 0, Op::kBackward).writes.pop_back();
  d.expect({"Backward block 2.0 lane 0 micro 0", "writes gradients of units [2], not of [0 2]"});
}

TEST(Check, ScratchThatAnotherBlockOverwritesIsFound) {
  Damaged d;
  // The owner's gradient goes to the scratch that all units share, as if it had no other writer.
  auto& buffers = d.plan.programs[0].buffers;
  int own = -1, shared = -1;
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b].name == "scratch 0") own = static_cast<int>(b);
    if (buffers[b].name == "scratch") shared = static_cast<int>(b);
  }
  ASSERT_GE(own, 0);
  ASSERT_GE(shared, 0);
  for (Instruction& i : d.queue(0, 0)) {
    if (i.op == Op::kBackward && i.block == 0) std::replace(i.writes.begin(), i.writes.end(), own, shared);
    for (Add& a : i.adds) {
      if (a.from == own) a.from = shared;
    }
  }
  d.expect({"Fold unit 0 lane 1", "adds what was not written"});
}

TEST(Check, AForwardThatIsLeftOutIsMissedByWhatNeedsIt) {
  Damaged d;
  d.drop(0, 0, Op::kForward, 1);
  d.expect({"rank 0: Forward block 1.0 lane 0 micro 0 is missing"});
  d.expect({"Forward block 1.1 lane 0", "does not read its input"});
}

TEST(Check, LanesThatNobodyOwnsAreFound) {
  Damaged d;
  d.plan.lanes = 5;
  d.expect({"lanes [4, 5) belong to nobody"});
}

TEST(Check, EveryFaultIsListed) {
  Damaged d(1, false);
  d.drop(0, 0, Op::kFold);
  d.drop(1, 0, Op::kForward);
  d.expect({"rank 1: Forward block 0.0 lane 2 micro 0 is missing"});
  d.expect({"rank 0", "Update unit 2"});
}

}  // namespace tutti
