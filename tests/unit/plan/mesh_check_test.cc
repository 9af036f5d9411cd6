// What a fault of a damaged plan says, damage by damage.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "plan/check/prove.h"
#include "unit/plan/sample_meshes.h"

namespace tutti {

using test::mesh_model;
using test::MeshModel;

namespace {

/// A plan to be damaged by hand.
struct Damaged {
  ModelShape model;
  MeshOptions options;
  Plan plan;

  Damaged(const MeshModel& m, const Mesh& mesh, int zero, Batch batch = {2, 2, 1})
      : model(mesh_model(m)) {
    options.mesh = mesh, options.zero = zero, options.batch = batch;
    options.bucket_floats = 0;
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
    const auto faults = prove(plan, model);
    for (const std::string& fault : faults) {
      bool all = true;
      for (const std::string& text : texts) all &= fault.find(text) != std::string::npos;
      if (all) return;
    }
    ADD_FAILURE() << "no fault says '" << fmt::format("{}", fmt::join(texts, "' and '"))
                  << "' among\n"
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
  // The refreshed parameters of rank 0 are read when the step ends; a Load into them would begin
  // the next one.
  const int parameter = buffer_of(d.get(0, Op::kGather), OperandRole::kPart);
  d.get(0, Op::kLoad).operands[0].buffer = parameter;
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
  d.plan.programs[1].buffers[buffer_of(d.get(1, Op::kReduce), OperandRole::kSum)].bytes /= 2;
  d.expect({"rank 1", "slice"});
}

}  // namespace tutti
