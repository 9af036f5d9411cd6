// The device's counterpart of HostTravel: each instruction that moves something has an object that
// knows all its addresses, made once and found by the instruction's id. Running one puts a fixed
// list of operations on a stream, so a captured step holds the same.
#include "engine/device/device_travel.h"

#include <algorithm>

#include "base/error.h"
#include "comm/pulls.h"
#include "engine/device/kind.h"

namespace tutti {

namespace {

/// Bytes for what the reduces of a queue receive. These run one after another, so they share it.
int64_t queue_scratch_bytes(const Plan& plan, const Queue& queue, int rank) {
  int64_t bytes = 0;
  for (const Instruction& i : queue.instructions)
    if (i.op == Op::kReduce)
      bytes = std::max(bytes, DeviceSum::scratch_bytes(plan.sums[i.transfer], rank));
  return align_up(bytes, 256);
}

}  // namespace

DeviceTravel::DeviceTravel(const EngineParts& parts, Which which, const Ways& ways,
                           DeviceArrays& arrays)
    : p_(parts),
      which_(which),
      ways_(ways),
      device_(*ways.rank.device),
      kernels_(ways.rank.library->state),
      plan_(parts.plans.of(which)),
      program_(parts.program(which)) {
  // Queues run at the same time, so each has scratch of its own.
  for (const Queue& queue : program_.queues) {
    auto* scratch = arrays.take<std::byte>(BufferKind::kMessage,
                                           queue_scratch_bytes(plan_, queue, program_.rank));
    for (const Instruction& i : queue.instructions) prepare(i, queue.use, scratch);
  }

  // In one order on all ranks: the first copies are made outside of a step, where no event orders
  // them.
  std::sort(refreshes_.begin(), refreshes_.end(),
            [](const Instruction* a, const Instruction* b) { return a->id < b->id; });
}

int64_t DeviceTravel::scratch_bytes(const Plan& plan, const Program& program) {
  int64_t bytes = 0;
  for (const Queue& queue : program.queues) bytes += queue_scratch_bytes(plan, queue, program.rank);
  return bytes;
}

/// What moves is worked out before the first step, so that a captured step has all its addresses.
void DeviceTravel::prepare(const Instruction& i, QueueUse queue, std::byte* scratch) {
  switch (i.op) {
    case Op::kReduce:
      return prepare_reduce(i, queue, scratch);

    // Copies of what an Update writes are also made once before the first step, so the gathers that
    // make them can be asked for by themselves.
    case Op::kGather: {
      const CopyTransfer& transfer = plan_.copies[i.transfer];
      const auto memory = [&all = *p_.state.memory, which = which_](int b) {
        return all.of(which, b);
      };
      if (transfer.updated) refreshes_.push_back(&i);
      copies_[i.id] = std::make_unique<DeviceCopies>(transfer, program_.rank, window(), memory,
                                                     device_, ways_.groups.meeting(queue));
      return;
    }
    case Op::kExchange:
      return prepare_exchange(i);

    // Links are made with the groups, one for each pair of ranks that sends on such a queue.
    case Op::kSend:
    case Op::kRecv:
      links_[i.id] = &ways_.groups.link(link_of(i, queue, program_.rank));
      return;

    // A Fetch or Evict copies between buffers, which keep their places anyway.
    default:
      return;
  }
}

void DeviceTravel::prepare_reduce(const Instruction& i, QueueUse queue, std::byte* scratch) {
  const SumTransfer& transfer = plan_.sums[i.transfer];
  std::vector<std::vector<float*>> levels;
  for (const UnitSum& unit : transfer.units)
    levels.push_back(levels_of(plan_, i, unit, program_.rank,
                               [this](int b) { return reinterpret_cast<float*>(memory(b)); }));
  sums_[i.id] = std::make_unique<DeviceSum>(transfer, program_.rank, window(), levels, scratch,
                                            ways_.groups.meeting(queue), kernels_);
}

void DeviceTravel::prepare_exchange(const Instruction& i) {
  constexpr int64_t kFloat = sizeof(float);
  const DeviceColumns::Members members{p_.training.shape.columns, ways_.groups.columns(), device_,
                                       kernels_};
  const int64_t bytes = ways_.station.exchanged_bytes(i);
  std::vector<std::byte*> in, out;
  for (int b : i.flow.in) in.push_back(memory(b));
  for (int b : i.flow.out) out.push_back(memory(b));

  // A gather moves bytes and needs nothing but places.
  if (i.exchange == Exchange::kGather) {
    exchanges_.emplace(i.id, DeviceColumns::gather(members, in, bytes, out[0]));
    return;
  }

  // A scatter adds float32 sums, and may leave their sum in 16 bits.
  std::vector<float*> sums;
  for (std::byte* sum : in) sums.push_back(reinterpret_cast<float*>(sum));
  const bool narrow = ways_.station.scattered_element_bytes(i) < kFloat;
  std::byte* scratch = i.flow.work >= 0 ? memory(i.flow.work) : nullptr;
  exchanges_.emplace(i.id, DeviceColumns::scatter(
                               members, sums, bytes / kFloat, out, scratch,
                               narrow ? p_.training.job.numerics.precision : Precision::kFloat32));
}

void DeviceTravel::write_low(const Instruction& i, Stream stream) const {
  // Parameters arrive in float32, and matmuls read their low copies, so these are
  // written right after.
  for (const Operand& operand : i.operands)
    if (operand.access != Access::kRead &&
        program_.buffers[operand.buffer].kind == BufferKind::kParameter)
      ways_.low.write(stream, program_.buffers[operand.buffer], operand.unit,
                      memory(operand.buffer));
}

void DeviceTravel::copy_tier(const Instruction& i, Stream stream) const {
  // The n-th stored operand belongs to the n-th resident one.
  const auto stored = operands_of(i, OperandRole::kStored),
             resident = operands_of(i, OperandRole::kResident);
  for (size_t k = 0; k < stored.size(); ++k) {
    const bool fetch = i.op == Op::kFetch;
    const int from = (fetch ? stored : resident)[k]->buffer,
              to = (fetch ? resident : stored)[k]->buffer;
    const auto bytes = static_cast<size_t>(program_.buffers[stored[k]->buffer].bytes);
    if (bytes > 0) device_.copy(stream, memory(to), memory(from), bytes);
  }
}

void DeviceTravel::put(const Instruction& i, Stream stream) {
  switch (i.op) {
    // Here all ranks of a group meet. What a Gather brings are parameters.
    case Op::kReduce:
      return sums_.at(i.id)->run(stream);
    case Op::kGather:
      copies_.at(i.id)->run(stream);
      return write_low(i, stream);
    case Op::kExchange:
      return exchanges_.at(i.id).run(stream);

    // In a link the sender is member 0, and the receiver member 1.
    case Op::kSend: {
      const DeviceSend send{1, memory(buffer_of(i, OperandRole::kMessage)),
                            static_cast<size_t>(i.bytes)};
      return links_.at(i.id)->exchange(stream, std::span(&send, 1), {});
    }
    case Op::kRecv: {
      const DeviceReceive receive{0, memory(buffer_of(i, OperandRole::kMessage)),
                                  static_cast<size_t>(i.bytes)};
      return links_.at(i.id)->exchange(stream, {}, std::span(&receive, 1));
    }

    // The second tier is in the host's memory, so no other rank takes part.
    case Op::kFetch:
      copy_tier(i, stream);
      return write_low(i, stream);
    case Op::kEvict:
      return copy_tier(i, stream);
    default:
      TUTTI_CHECK(false, "{} does not travel", to_string(i));
  }
}

}  // namespace tutti
