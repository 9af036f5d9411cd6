#include "comm/roll_call.h"

#include <gtest/gtest.h>

#include "support/transports.h"

namespace tutti {
namespace {

using namespace testing_support;

Instruction meeting(Op op, uint32_t id, int parcel, int group, int round = -1) {
  Instruction i;
  i.op = op, i.id = id, i.parcel = parcel, i.group = group, i.round = round;
  return i;
}

Instruction message(Op op, int micro, int peer) {
  Instruction i;
  i.op = op, i.id = 900 + static_cast<uint32_t>(micro), i.lane = 0, i.micro = micro, i.peer = peer;
  return i;
}

/// Three ranks meet all together and the first two by themselves; rank 0 sends to rank 2 besides
/// that.
Plan three_ranks() {
  Plan plan;
  plan.ranks = 3;
  plan.groups = {{0, 1}, {0, 1, 2}};
  for (int r = 0; r < 3; ++r) {
    Program program;
    program.rank = r;
    Queue compute{"compute", {meeting(Op::kVote, 10, -1, -1)}}, data{"data", {}, QueueUse::kData};
    data.instructions = {meeting(Op::kReduce, 11, 3, 1, 0), meeting(Op::kGather, 12, 2, 1)};
    if (r < 2) data.instructions.push_back(meeting(Op::kReduce, 13, 1, 0, 0));
    data.instructions.push_back(meeting(Op::kReduce, 14, 0, 1, 0));
    program.queues = {compute, data};
    if (r == 0) {
      program.queues.push_back({"activations out",
                                {message(Op::kSend, 0, 2), message(Op::kSend, 1, 2)},
                                QueueUse::kActivationsOut});
    } else {
      program.queues.push_back({"activations in", {}, QueueUse::kActivationsIn});
    }
    if (r == 2)
      program.queues.back().instructions = {message(Op::kRecv, 0, 0), message(Op::kRecv, 1, 0)};
    plan.programs.push_back(std::move(program));
  }
  return plan;
}

using Walk = std::function<void(RollCall& roll, const Plan& plan, int rank)>;

/// Nothing times out: who ends has found something, or has lost one who did. What each rank said.
std::vector<std::string> call(const TransportCase& which, const Plan& plan, const Walk& walk) {
  const Plan planned = three_ranks();
  return run_threads(3, [&](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    const auto transport = make_transport(options_for(which, 3), kTestEpoch, rendezvous, clock,
                                          nullptr, clock.after(std::chrono::seconds(20)));
    {
      RollCall roll(planned, rank, *transport, clock, kRollCall);
      walk(roll, plan, rank);
    }
    rendezvous.exchange({}, Deadline::never());
  });
}

void call_queue(RollCall& roll, const Queue& queue, uint64_t step) {
  for (const Instruction& i : queue.instructions) {
    roll.tell(i, step, Deadline::never());
    roll.hear(i, Deadline::never());
  }
}

/// All queues of a rank, one after the other.
void call_all(RollCall& roll, const Plan& plan, int rank) {
  for (uint64_t step = 1; step <= 3; ++step)
    for (const Queue& queue : plan.programs[rank].queues) call_queue(roll, queue, step);
}

/// Whoever is first to find it says one of the texts.
void expect_said(const std::vector<std::string>& errors, const std::vector<std::string>& texts) {
  for (const std::string& error : errors)
    for (const std::string& text : texts)
      if (error.find(text) != std::string::npos) return;
  ADD_FAILURE() << "nobody said \"" << texts[0] << "\", but:\n"
                << errors[0] << '\n'
                << errors[1] << '\n'
                << errors[2];
}

class RollCalls : public ::testing::TestWithParam<TransportCase> {};

}  // namespace

TEST_P(RollCalls, RanksThatMeanTheSameHearNothing) {
  EXPECT_EQ(call(GetParam(), three_ranks(), call_all), std::vector<std::string>(3));
}

TEST_P(RollCalls, WhatWasNotHeardIsHeardWithTheNext) {
  const auto errors =
      call(GetParam(), three_ranks(), [](RollCall& roll, const Plan& plan, int rank) {
        const auto& data = plan.programs[rank].queues[1].instructions;
        roll.tell(data[0], 1, Deadline::never());
        roll.tell(rank == 1 ? data[3] : data[1], 1, Deadline::never());
        roll.tell(data.back(), 1, Deadline::never());
        roll.hear(data.back(), Deadline::never());
      });
  expect_said(errors, {"rank 1 is at Reduce parcel 0 round 0 where rank 2 is at Gather parcel 2 "
                       "(queue data, meeting 2",
                       "rank 0 is at Gather parcel 2 where rank 1 is at Reduce parcel 0 round 0 "
                       "(queue data, meeting 2"});
}

TEST_P(RollCalls, SwappedMeetingsAreNamed) {
  Plan plan = three_ranks();
  auto& data = plan.programs[1].queues[1].instructions;
  std::swap(data[0], data[1]);
  expect_said(call(GetParam(), plan, call_all),
              {"rank 0 is at Reduce parcel 3 round 0 where rank 1 is at Gather parcel 2 (queue "
               "data, meeting 1 of step 1)",
               "rank 1 is at Gather parcel 2 where rank 2 is at Reduce parcel 3 round 0 (queue "
               "data, meeting 1 of step 1)"});
}

TEST_P(RollCalls, MeetingsOfDifferentGroupsCannotWaitForEachOther) {
  Plan plan = three_ranks();
  auto& data = plan.programs[1].queues[1].instructions;
  std::swap(data[2], data[3]);
  expect_said(call(GetParam(), plan, call_all),
              {"rank 0 is at Reduce parcel 1 round 0 where rank 1 is at Reduce parcel 0 round 0 "
               "(queue data, meeting 3"});
}

TEST_P(RollCalls, ARankThatLeavesOneOutIsFoundAtTheNext) {
  Plan plan = three_ranks();
  auto& data = plan.programs[2].queues[1].instructions;
  data.erase(data.begin() + 1);
  expect_said(call(GetParam(), plan, call_all),
              {"rank 1 is at Gather parcel 2 where rank 2 is at Reduce parcel 0 round 0 (queue "
               "data, meeting 2 of step 1)",
               "rank 2 is at Reduce parcel 0 round 0 where rank 0 is at Gather parcel 2 (queue "
               "data, meeting 2 of step 1)"});
}

TEST_P(RollCalls, AReceiverNamesWhatIsSentInstead) {
  Plan plan = three_ranks();
  auto& sends = plan.programs[0].queues[2].instructions;
  std::swap(sends[0], sends[1]);
  expect_said(call(GetParam(), plan, call_all),
              {"rank 0 is at Send lane 0 micro 1 to rank 2 where rank 2 is at Recv lane 0 micro 0 "
               "from rank 0 (queue "
               "activations in, meeting 1 of step 1)"});
}

TEST_P(RollCalls, ARankInAnotherStepIsNamed) {
  const auto errors =
      call(GetParam(), three_ranks(), [](RollCall& roll, const Plan& plan, int rank) {
        call_queue(roll, plan.programs[rank].queues[0], rank == 1 ? 8 : 7);
      });
  expect_said(
      errors,
      {"rank 1 is at Vote of step 8 where rank 2 is at Vote (queue compute, meeting 1 of step 7)",
       "rank 0 is at Vote of step 7 where rank 1 is at Vote (queue compute, meeting 1 of step 8)"});
}

INSTANTIATE_TEST_SUITE_P(Over, RollCalls,
                         ::testing::Values(TransportCase{"inproc", "inproc", true},
                                           TransportCase{"shm_threads", "shm", true},
                                           TransportCase{"tcp_threads", "tcp", true}),
                         [](const auto& test) { return test.param.name; });

}  // namespace tutti
