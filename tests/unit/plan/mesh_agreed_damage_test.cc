// Damage that all ranks agree on, or that is in what a handler of the engine takes by its place:
// random damage in one place (mesh_mutation_test.cc) does not draw it.
#include <gtest/gtest.h>

#include <utility>

#include "config/job_parts.h"
#include "plan/check/prove.h"
#include "plan/search/link_bytes.h"
#include "unit/plan/sample_meshes.h"

namespace tutti {

using test::mesh_model;
using test::MeshModel;

namespace {

struct Planned : test::PlannedMesh {
  using PlannedMesh::PlannedMesh;
  Planned& make() {
    EXPECT_TRUE(mesh_faults(model, options).empty());
    plan = plan_mesh(model, options);
    EXPECT_EQ(said(), "");
    return *this;
  }
  std::string said() const {
    const auto faults = prove(plan, model);
    return faults.empty() ? "" : faults[0];
  }
  /// Calls f(program, instruction) for the op on all ranks.
  template <class F>
  void each(Op op, F&& f) {
    for (Program& program : plan.programs)
      for (Queue& queue : program.queues)
        for (Instruction& i : queue.instructions)
          if (i.op == op) f(program, i);
  }
  void expect(const std::string& text) {
    EXPECT_NE(said().find(text), std::string::npos) << said();
  }
};

Planned stages() { return Planned(mesh_model({4, 1, true}), {1, 1, 2, 1}, 0, {2, 2, 1}).make(); }
Planned columns() { return Planned(mesh_model({4, 2, true}), {2, 2, 1, 2}, 1, {2, 2, 1}).make(); }
Planned slices() { return Planned(mesh_model({4, 1, true}), {2, 1, 1, 2}, 1, {4, 1, 1}).make(); }

/// A layer for each number: its last segment has as many outputs, which the next layer reads.
ModelShape with_borders(const std::vector<int>& outputs) {
  ModelShape model;
  model.data_bytes = {64};
  for (int layer = 0; layer < static_cast<int>(outputs.size()); ++layer) {
    BlockShape block;
    block.name = fmt::format("layer{}", layer);
    block.layer = layer;
    test::detail::add_parameter(block, "weight", 500);
    SegmentShape segment = test::detail::segment("all", true);
    if (layer == 0) segment.inputs = {{true, 0, false, 0}};
    for (int k = 0; layer > 0 && k < outputs[layer - 1]; ++k)
      segment.inputs.push_back({false, k, true, 256});
    for (int k = 0; k < outputs[layer]; ++k)
      segment.outputs.push_back(
          test::detail::output(fmt::format("x{}", k), 256, 1, Exchange::kNone));
    block.segments = {std::move(segment)};
    model.blocks.push_back(std::move(block));
  }
  return model;
}

}  // namespace

TEST(MeshIds, MessagesHaveIdsOfTheirOwnWhereChunksEndWithDifferentNumbersOfTensors) {
  for (const std::string& schedule : names_of<PipelinePart>()) {
    Planned p(with_borders({3, 1, 2, 1, 3, 1}), {2, 1, 2, 1}, 0, {4, 2, 1});
    p.options.schedule = schedule;
    p.options.chunks = 3;
    p.make();
  }
}

TEST(MeshAgreedDamage, AMessageOfFewerBytesThanItsTensorIsNamed) {
  Planned p = stages();
  for (Op op : {Op::kSend, Op::kRecv}) p.each(op, [](Program&, Instruction& i) { i.bytes /= 2; });
  p.expect("sends 1024 bytes of a tensor of 2048");
}

TEST(MeshAgreedDamage, AnExchangeThatNamesAnotherTensorIsNamed) {
  Planned other = columns(), other_way = columns(), none = columns(), moved = columns();
  other.each(Op::kExchange, [](Program&, Instruction& i) { i.output = 1; });
  other.expect("is not what column 0 brings");
  other_way.each(Op::kExchange, [](Program&, Instruction& i) { i.part = Part::kInput; });
  other_way.expect("is not what column 0 brings");
  none.each(Op::kExchange, [](Program&, Instruction& i) { i.output = 2; });
  none.expect("names no output");
  moved.each(Op::kExchange, [](Program&, Instruction& i) { i.segment = 1 - i.segment; });
  moved.expect("is not what column 0 brings");
}

TEST(MeshAgreedDamage, AnExchangeWithoutRoomForWhatArrivesIsNamed) {
  Planned p = columns();
  p.each(Op::kExchange, [](Program& program, Instruction& i) {
    if (i.flow.work >= 0) program.buffers[i.flow.work].bytes = 64;
  });
  p.expect("has 64 bytes for sums that arrive");
}

TEST(MeshAgreedDamage, AnUpdateThatTakesMomentsForParametersIsNamed) {
  Planned p = slices();
  p.each(Op::kUpdate, [](Program&, Instruction& i) {
    for (Operand& operand : i.operands) {
      if (operand.role == OperandRole::kParameter)
        operand.role = OperandRole::kMoment;
      else if (operand.role == OperandRole::kMoment)
        operand.role = OperandRole::kParameter;
    }
  });
  p.expect("updates parameters and moments of its unit");
}

TEST(MeshAgreedDamage, AFetchOfMoreThanItsMemoryHoldsIsNamed) {
  Planned p(mesh_model({4, 1, true}), {2, 1, 1, 2}, 2, {2, 1, 1});
  p.options.offload = Offload::kOptimizer;
  p.make();
  for (Program& program : p.plan.programs)
    for (Buffer& buffer : program.buffers) buffer.bytes += buffer.offloaded ? 65536 : 0;
  p.expect("do not both hold unit");
}

// The last stage has no sum to wait for, and the others' sums come after its loss: but its vote
// gives what is there.
TEST(MeshAgreedDamage, AVoteThatItsOwnLossDoesNotPrecedeIsNamed) {
  ModelShape model = mesh_model({4, 1, false});
  BlockShape& head = model.blocks.back();
  head.parameters.clear();
  head.unit_size = head.gradient_size = 0;
  Planned p(std::move(model), {1, 1, 2, 1}, 0, {2, 2, 1});
  p.options.cut = {3};
  p.make();
  p.each(Op::kVote, [](Program& program, Instruction& i) {
    if (program.rank == 1) i.waits.clear();
  });
  p.expect("does not follow rank 1 queue compute");
}

// Buffers are rounded up and shared; what travels is not.
TEST(MeshAgreedDamage, LinksCarryTheBytesOfTensorsNotOfBuffers) {
  Planned p(with_borders({1, 1}), {1, 1, 2, 1}, 0, {3, 1, 1});
  p.model.blocks[0].segments[0].outputs[0].bytes =
      p.model.blocks[0].segments[0].outputs[0].read_bytes = 100;
  p.model.blocks[1].segments[0].inputs[0].grad_bytes = 100;
  p.make();
  EXPECT_EQ(link_bytes(p.plan, p.model)[0][1], 300);
  EXPECT_EQ(link_bytes(p.plan, p.model)[1][0], 300);
}

}  // namespace tutti
