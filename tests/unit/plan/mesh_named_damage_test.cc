// One damage to each thing that a plan says of its transfers, operands, borrows, owners and
// parcels: prove() finds every one of them and says what is wrong.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "plan/check/prove.h"
#include "plan/ir/tags.h"
#include "unit/plan/sample_meshes.h"

namespace tutti {

using test::mesh_model;
using test::MeshModel;

namespace {

const MeshModel kTied{4, 1, true}, kConsuming{4, 1, false, true, true};

struct Planned : test::PlannedMesh {
  Planned(const MeshModel& m, const Mesh& mesh, int zero, Batch batch, bool windows = true)
      : PlannedMesh(mesh_model(m), mesh, zero, batch) {
    options.windows = windows;
    options.bucket_floats = 9000;
    plan = plan_mesh(model, options);
  }
  Instruction& get(int rank, Op op, int n = 0) {
    for (Queue& queue : plan.programs[rank].queues)
      for (Instruction& i : queue.instructions)
        if (i.op == op && n-- == 0) return i;
    throw std::out_of_range(op_name(op));
  }
  Operand& operand(int rank, Op op, OperandRole role, int n = 0) {
    for (Operand& operand : get(rank, op).operands)
      if (operand.role == role && n-- == 0) return operand;
    throw std::out_of_range(role_name(role));
  }
  /// The first gradient that a rank borrows.
  Operand& borrowed(int rank) {
    for (Queue& queue : plan.programs[rank].queues)
      for (Instruction& i : queue.instructions)
        for (Operand& operand : i.operands)
          if (operand.rank >= 0) return operand;
    throw std::out_of_range("borrows nothing");
  }
  /// Takes an instruction out, with the waits for it.
  Instruction take(int rank, Op op) {
    for (Queue& queue : plan.programs[rank].queues) {
      auto& list = queue.instructions;
      const auto it =
          std::find_if(list.begin(), list.end(), [&](const Instruction& i) { return i.op == op; });
      if (it == list.end()) continue;
      Instruction taken = *it;
      list.erase(it);
      for (Queue& other : plan.programs[rank].queues)
        for (Instruction& i : other.instructions) std::erase(i.waits, taken.signal);
      taken.signal = -1;
      return taken;
    }
    throw std::out_of_range(op_name(op));
  }
};

/// Three data ranks that borrow; two that hold slices; two without windows, and two of them that
/// consume.
Planned borrowing() { return {kTied, {3, 1, 1, 1}, 0, {3, 1, 1}}; }
Planned slices() { return {kTied, {2, 1, 1, 2}, 1, {4, 1, 1}}; }
Planned returning() { return {kTied, {2, 1, 1, 1}, 0, {2, 1, 1}, false}; }
Planned consuming() { return {kConsuming, {2, 1, 1, 1}, 0, {2, 1, 1}, false}; }

struct Damage {
  const char* what;
  Planned (*make)();
  std::function<void(Planned&)> damage;
  const char* said;
};

void expect_found(const std::vector<Damage>& list) {
  for (const Damage& d : list) {
    SCOPED_TRACE(d.what);
    Planned p = d.make();
    ASSERT_TRUE(prove(p.plan, p.model).empty());
    d.damage(p);
    const auto faults = prove(p.plan, p.model);
    const bool found = std::any_of(faults.begin(), faults.end(), [&](const std::string& fault) {
      return fault.find(d.said) != std::string::npos;
    });
    EXPECT_TRUE(found) << "nothing says '" << d.said << "' among\n"
                       << fmt::format("{}", fmt::join(faults, "\n"));
  }
}

SumSource& source(Planned& p) { return p.plan.sums[0].units[0].sources[0]; }
CopyTransfer::Copy& copy(Planned& p) { return p.plan.copies[0].copies[0]; }

}  // namespace

TEST(MeshNamedDamage, OfSumsIsFound) {
  expect_found({
      {"a term's rank", borrowing, [](Planned& p) { source(p).terms[1].rank = 2; }, "the job says"},
      {"a term of a stranger", slices, [](Planned& p) { source(p).terms[1].rank = 7; },
       "takes no part"},
      {"a term's offset", borrowing, [](Planned& p) { source(p).terms[1].offset += 256; },
       "does not read what unit"},
      {"one term less", borrowing, [](Planned& p) { source(p).terms.pop_back(); },
       "adds what is not there"},
      {"one term less of a further user", borrowing,
       [](Planned& p) { p.plan.sums.back().units[0].sources[1].terms.pop_back(); },
       "sources of other terms"},
      {"where a source adds", slices, [](Planned& p) { source(p).to.end -= 64; },
       "does not sum the sources of unit"},
      {"a source less", slices, [](Planned& p) { p.plan.sums.back().units[0].sources.pop_back(); },
       "does not sum the sources of unit 0"},
      {"a slice", borrowing, [](Planned& p) { p.plan.sums[0].units[0].slices[1].begin += 64; },
       "makes another slice of unit"},
      {"the order of additions", borrowing,
       [](Planned& p) {
         std::swap(p.plan.sums[0].sums[0].order[0], p.plan.sums[0].sums[0].order[1]);
       },
       "the job says"},
      {"an addition the other way", slices,
       [](Planned& p) {
         std::swap(p.plan.sums[0].sums[0].order[0].first, p.plan.sums[0].sums[0].order[0].second);
       },
       "the job says"},
      {"an addition that is not there", borrowing,
       [](Planned& p) { p.plan.sums[0].sums[0].order[0].second = 9; }, "adds what is not there"},
      {"sums that are not returned", returning,
       [](Planned& p) { p.plan.sums[0].returned = Return::kNone; }, "the job says"},
      {"a round more", slices, [](Planned& p) { p.plan.sums[0].rounds = 2; }, "has 1 rounds of 2"},
      {"a member less", slices, [](Planned& p) { p.plan.sums[0].ranks.pop_back(); },
       "is not the sum of its ranks"},
      {"another unit", slices, [](Planned& p) { p.plan.sums[0].units[0].unit = 0; },
       "is not the sum of its ranks"},
      {"no level", slices, [](Planned& p) { p.plan.sums[0].levels = 2; }, "has no level 1"},
  });
}

TEST(MeshNamedDamage, OfCopiesIsFound) {
  expect_found({
      {"its offset", slices, [](Planned& p) { copy(p).offset -= 256; }, "come to another place"},
      {"its place", slices, [](Planned& p) { copy(p).at -= 256; }, "come to another place"},
      {"both", slices, [](Planned& p) { copy(p).offset -= 256, copy(p).at -= 256; },
       "for after its Update"},
      {"its bytes", slices, [](Planned& p) { copy(p).bytes -= 256; }, "not up to date"},
      {"no bytes", slices, [](Planned& p) { copy(p).bytes = 0; }, "something else than floats"},
      {"its buffer", slices, [](Planned& p) { copy(p).buffer = 0; },
       "does not write what is copied to it"},
      {"whom it is of", slices, [](Planned& p) { copy(p).from = copy(p).to; }, "takes unit"},
      {"whom it is for", slices, [](Planned& p) { copy(p).to = 5; }, "takes no part"},
      {"before or after the Updates", slices, [](Planned& p) { p.plan.copies[0].updated = false; },
       "its Update"},
      {"gradients or parameters", slices, [](Planned& p) { p.plan.copies[0].gradients = true; },
       "something else"},
      {"its ranks", slices, [](Planned& p) { p.plan.copies[0].ranks = {0}; },
       "is not the copies of its ranks"},
      {"a copy less", slices, [](Planned& p) { p.plan.copies[0].copies.pop_back(); },
       "not up to date"},
  });
}

TEST(MeshNamedDamage, OfOwnersAndParcelsIsFound) {
  const auto sums = [](Planned& p) -> std::vector<Owned>& { return p.plan.ownership[1].sums; };
  expect_found({
      {"a sum's range", slices, [=](Planned& p) { sums(p)[0].range.end -= 64; },
       "without an owner"},
      {"a sum's border", borrowing,
       [=](Planned& p) { sums(p)[0].range.end -= 64, sums(p)[1].range.begin -= 64; },
       "another slice of unit 1 than it owns"},
      {"a sum's rank", borrowing,
       [=](Planned& p) { std::swap(sums(p)[0].ranks, sums(p)[1].ranks); }, "than it owns"},
      {"an owner that is not there", slices, [=](Planned& p) { sums(p)[0].ranks = {4}; },
       "without an owner"},
      {"moments", slices,
       [](Planned& p) {
         std::swap(p.plan.ownership[1].moments[0].range, p.plan.ownership[1].moments[1].range);
       },
       "does not hold what the rank owns of unit 1"},
      {"parameters", slices,
       [](Planned& p) { p.plan.ownership[1].parameters = p.plan.ownership[1].sums; },
       "does not hold what the rank owns of unit 1"},
      {"a parcel's unit", slices, [](Planned& p) { p.plan.parcels[0][0].unit = 0; },
       "parcel 0 is not a list"},
      {"a parcel's range", slices, [](Planned& p) { p.plan.parcels[0][0].range.end -= 64; },
       "parcel 0 is not a list"},
      {"a parcel's order", consuming,
       [](Planned& p) { std::swap(p.plan.parcels[0][0], p.plan.parcels[0][1]); },
       "is not the sum of its ranks and its parcel"},
      {"another parcel of all", slices,
       [](Planned& p) {
         for (int rank : {0, 1}) p.get(rank, Op::kReduce).parcel = 1;
       },
       "says another unit or range of a term"},
      {"a lane", slices, [](Planned& p) { p.plan.places[1].lanes[0] = 0; },
       "some lane or column has no rank"},
      {"a place", slices, [](Planned& p) { p.plan.places[1].at.data = 0; },
       "rank 1 does not stand there"},
      {"a home", slices, [](Planned& p) { p.plan.homes[1].pipeline = 1; }, "block 1 has no home"},
  });
}

TEST(MeshNamedDamage, OfOperandsIsFound) {
  constexpr auto kTerm = OperandRole::kTerm, kSum = OperandRole::kSum;
  expect_found({
      {"an id of another kind", slices,
       [](Planned& p) { p.get(0, Op::kUpdate).id = kSendIds.last; }, "is not of its kind"},
      {"a role", slices,
       [](Planned& p) { p.operand(0, Op::kReduce, kTerm).role = OperandRole::kPart; },
       "has no such use for a part"},
      {"an access", slices,
       [](Planned& p) { p.operand(0, Op::kReduce, kTerm).access = Access::kWrite; },
       "has no such use for a term"},
      {"a term's buffer", slices,
       [](Planned& p) {
         p.operand(0, Op::kReduce, kTerm).buffer =
             p.operand(0, Op::kUpdate, OperandRole::kMoment).buffer;
       },
       "another unit or range of a term"},
      {"a buffer that is not there", slices,
       [](Planned& p) { p.operand(0, Op::kNorm, kSum).buffer = 999; },
       "touches a buffer that is not there"},
      {"a unit", slices,
       [](Planned& p) { p.operand(0, Op::kUpdate, OperandRole::kMoment).unit = 1; },
       "another unit or range of a moment"},
      {"a term's range", slices,
       [](Planned& p) { p.operand(0, Op::kReduce, kTerm).range.begin += 64; },
       "does not read what unit"},
      {"a square's range", slices,
       [](Planned& p) { p.operand(0, Op::kNorm, kSum).range.end -= 64; }, "counts other squares"},
      {"a part's range", slices,
       [](Planned& p) { p.operand(0, Op::kGather, OperandRole::kPart).range.end -= 64; },
       "another unit or range of a part"},
      {"a range that says nothing", slices,
       [](Planned& p) {
         p.operand(0, Op::kReduce, kSum).range = {0, 64};
       },
       "another unit or range of a sum"},
      {"a gradient's range", slices,
       [](Planned& p) { p.operand(0, Op::kUpdate, OperandRole::kGradient).range.end -= 64; },
       "its gradients are not those of what it updates"},
      {"a rank", slices,
       [](Planned& p) { p.operand(0, Op::kUpdate, OperandRole::kParameter).rank = 1; },
       "borrows something else than gradients"},
      {"itself as a rank", slices,
       [](Planned& p) { p.operand(0, Op::kUpdate, OperandRole::kGradient).rank = 0; },
       "borrows of nobody"},
      {"twice", slices,
       [](Planned& p) { p.get(0, Op::kVote).operands.push_back(p.get(0, Op::kVote).operands[1]); },
       "names an operand twice"},
      {"other losses", slices,
       [](Planned& p) {
         p.operand(0, Op::kVote, OperandRole::kLoss).buffer =
             p.operand(0, Op::kVote, OperandRole::kSquares, 1).buffer;
       },
       "does not read the losses"},
      {"losses as squares", slices,
       [](Planned& p) {
         p.operand(0, Op::kVote, OperandRole::kSquares, 1).buffer =
             p.operand(0, Op::kVote, OperandRole::kLoss).buffer;
       },
       "which is not for it"},
  });
}

TEST(MeshNamedDamage, OfBorrowsIsFound) {
  expect_found({
      {"no Release", borrowing, [](Planned& p) { p.take(1, Op::kRelease); },
       "what it borrows is never released"},
      {"a Release of another parcel", borrowing,
       [](Planned& p) { p.get(1, Op::kRelease).parcel ^= 1; }, "what it borrows is never released"},
      {"a Release ahead of the Update", borrowing,
       [](Planned& p) {
         auto& list = p.plan.programs[1].queues[0].instructions;
         list.insert(list.begin(), p.take(1, Op::kRelease));
       },
       "what it borrows is never released"},
      {"no Acquire", borrowing, [](Planned& p) { p.take(1, Op::kAcquire); },
       "of the next step are not ordered"},
      {"an Acquire of another parcel", borrowing,
       [](Planned& p) { p.get(1, Op::kAcquire).parcel ^= 1; }, "another unit or range of a lent"},
      {"an Acquire after the first write", borrowing,
       [](Planned& p) {
         const Instruction late = p.take(1, Op::kAcquire);
         auto& data = p.plan.programs[1].queues[1].instructions;
         const auto reduce = std::find_if(data.begin(), data.end(), [&](const Instruction& i) {
           return i.op == Op::kReduce && i.parcel == late.parcel;
         });
         data.insert(reduce, late)->waits = reduce->waits;
       },
       "not ordered"},
      {"an Acquire that nobody waits for", borrowing,
       [](Planned& p) {
         for (const Instruction& acquire : p.plan.programs[1].queues[1].instructions)
           for (Instruction& i : p.plan.programs[1].queues[0].instructions)
             if (acquire.op == Op::kAcquire) std::erase(i.waits, acquire.signal);
       },
       "not ordered"},
      {"of another rank", borrowing,
       [](Planned& p) { p.borrowed(0).rank = 3 - p.borrowed(0).rank; }, "the job says"},
      {"of nobody", borrowing, [](Planned& p) { p.borrowed(0).rank = 9; },
       "borrows a buffer that is not there"},
      {"of its own memory", borrowing, [](Planned& p) { p.borrowed(0).rank = -1; }, "the job says"},
      {"another range", borrowing, [](Planned& p) { p.borrowed(0).range.begin += 64; },
       "its gradients do not follow one another"},
      {"another buffer", borrowing,
       [](Planned& p) {
         p.borrowed(0).buffer = p.operand(1, Op::kUpdate, OperandRole::kMoment).buffer;
       },
       "is not in the window"},
      {"to write there", borrowing, [](Planned& p) { p.borrowed(0).access = Access::kUpdate; },
       "has no such use for a gradient"},
      {"of a buffer outside the window", borrowing,
       [](Planned& p) {
         p.plan.programs[p.borrowed(0).rank].buffers[p.borrowed(0).buffer].window = false;
       },
       "is not in the window"},
  });
}

TEST(MeshNamedDamage, OfConsumptionIsFound) {
  const auto loss = [](Planned& p, Op op) -> Instruction& {
    for (Instruction& i : p.plan.programs[0].queues[0].instructions)
      if (i.op == op && i.block == 3 && i.segment == 1) return i;
    throw std::out_of_range("loss");
  };
  expect_found({
      {"an input that is not consumed", consuming,
       [](Planned& p) {
         // the first layer's norm passes its input on
         Instruction& first = p.get(0, Op::kForward, 1);
         first.flow.grad_in = {first.flow.in[0]};
       },
       "while it reads it"},
      {"forward alone", consuming,
       [=](Planned& p) {
         loss(p, Op::kBackward).flow.grad_in[0] = p.get(0, Op::kForward).flow.out[0];
       },
       "is not its input"},
      {"backward alone", consuming, [=](Planned& p) { loss(p, Op::kForward).flow.grad_in.clear(); },
       "is not its input"},
      {"another's memory", consuming,
       [=](Planned& p) {
         loss(p, Op::kForward).flow.grad_in[0] = p.get(0, Op::kForward).flow.out[0];
       },
       "takes no input's memory"},
      {"before it was made", consuming,
       [=](Planned& p) { std::swap(loss(p, Op::kBackward), *(&loss(p, Op::kBackward) + 1)); },
       "is not its output"},
  });
}

TEST(MeshNamedDamage, OfWhatTheLoaderLendsIsFound) {
  Planned p = slices();
  Buffer& work = p.plan.programs[0].buffers[p.operand(0, Op::kVote, OperandRole::kVerdict).buffer];
  work.lent = true;
  EXPECT_NE(prove(p.plan, p.model).at(0).find("lends data alone"), std::string::npos);
  // Two micro-batches are in work, but the loader lends one at a time.
  Planned stages(kTied, {1, 1, 2, 1}, 0, {1, 4, 1});
  for (Program& program : stages.plan.programs)
    for (Buffer& buffer : program.buffers) buffer.lent = buffer.kind == BufferKind::kData;
  EXPECT_NE(prove(stages.plan, stages.model).at(0).find("is not its input"), std::string::npos);
}

}  // namespace tutti
