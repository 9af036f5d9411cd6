// Names and the readable form of a plan, and what is looked up in it.
#include "plan/ir/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace tutti {

/// Names as dumps, faults and traces say them.
const char* op_name(Op op) {
  switch (op) {
    case Op::kLoad:
      return "Load";
    case Op::kForward:
      return "Forward";
    case Op::kBackward:
      return "Backward";
    case Op::kFold:
      return "Fold";
    case Op::kAcquire:
      return "Acquire";
    case Op::kReduce:
      return "Reduce";
    case Op::kNorm:
      return "Norm";
    case Op::kGather:
      return "Gather";
    case Op::kVote:
      return "Vote";
    case Op::kUpdate:
      return "Update";
    case Op::kSend:
      return "Send";
    case Op::kRecv:
      return "Recv";
    case Op::kExchange:
      return "Exchange";
    case Op::kFetch:
      return "Fetch";
    case Op::kEvict:
      return "Evict";
    case Op::kRelease:
      return "Release";
  }
  return "?";
}

/// What the memory of a rank is for, as forecasts and reports list it.
const char* kind_name(BufferKind kind) {
  switch (kind) {
    case BufferKind::kParameter:
      return "parameter";
    case BufferKind::kGradient:
      return "gradient";
    case BufferKind::kMoment:
      return "moment";
    case BufferKind::kSaved:
      return "saved";
    case BufferKind::kBorder:
      return "border";
    case BufferKind::kWork:
      return "work";
    case BufferKind::kMessage:
      return "message";
    case BufferKind::kData:
      return "data";
    case BufferKind::kCopy:
      return "copy";
  }
  return "?";
}

const char* role_name(OperandRole role) {
  static constexpr const char* kNames[kRoles] = {
      "data",     "loss",      "squares", "verdict", "term",   "sum",      "part", "whole",
      "gradient", "parameter", "moment",  "message", "stored", "resident", "lent"};
  return kNames[static_cast<size_t>(role)];
}

// Traces keep these names, and pictures of traces tell the compute queue from the others by them.
const char* queue_name(QueueUse use) {
  static constexpr const char* kNames[kQueueUses] = {"compute",
                                                     "data",
                                                     "shared",
                                                     "tier",
                                                     "activations in",
                                                     "activations out",
                                                     "gradients in",
                                                     "gradients out",
                                                     "activations in, back",
                                                     "activations out, back",
                                                     "gradients in, back",
                                                     "gradients out, back"};
  return kNames[static_cast<size_t>(use)];
}

/// A way is named after the queue that receives: what one stage sends on, its neighbour takes in.
QueueUse way_of(QueueUse use) {
  switch (use) {
    case QueueUse::kActivationsOut:
      return QueueUse::kActivationsIn;
    case QueueUse::kGradientsOut:
      return QueueUse::kGradientsIn;
    case QueueUse::kActivationsOutBack:
      return QueueUse::kActivationsInBack;
    case QueueUse::kGradientsOutBack:
      return QueueUse::kGradientsInBack;
    default:
      return use;
  }
}

std::vector<const Operand*> operands_of(const Instruction& instruction, OperandRole role,
                                        int unit) {
  std::vector<const Operand*> found;
  for (const Operand& operand : instruction.operands)
    if (operand.role == role && (unit < 0 || operand.unit == unit)) found.push_back(&operand);
  return found;
}

int buffer_of(const Instruction& instruction, OperandRole role) {
  for (const Operand& operand : instruction.operands)
    if (operand.role == role) return operand.buffer;
  return -1;
}

std::vector<PlacedRange> placed_in(const Buffer& buffer, int64_t unit_size) {
  if (!buffer.placed.empty()) return buffer.placed;

  // A buffer without a range holds the unit from its start, as far as the buffer reaches: with an
  // empty slice that is nothing.
  const Range room{0, buffer.bytes / static_cast<int64_t>(sizeof(float))};
  const Range held = overlap(buffer.range.empty() ? room : buffer.range, {0, unit_size});
  return {{held, held.begin}};
}

Range range_of(const std::vector<Owned>& owners, int rank) {
  for (const Owned& owned : owners)
    if (std::find(owned.ranks.begin(), owned.ranks.end(), rank) != owned.ranks.end())
      return owned.range;
  return {};
}

std::vector<int> members_of(const Plan& plan, const Instruction& instruction) {
  if (instruction.group >= 0) return plan.groups[static_cast<size_t>(instruction.group)];
  std::vector<int> all(static_cast<size_t>(plan.ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

bool is_home(const Plan& plan, int rank, int block) {
  // A home is all ranks with these coordinates, whatever their data coordinate.
  Coordinates at = plan.places[static_cast<size_t>(rank)].at;
  at.data = 0;
  return at == plan.homes[static_cast<size_t>(block)];
}

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

std::string to_string(const Instruction& i) {
  std::string text = op_name(i.op);

  // Ops on parameters and gradients work on a block's unit, whose number is the block's.
  const bool of_unit = i.op == Op::kUpdate || i.op == Op::kFold || i.op == Op::kReduce ||
                       i.op == Op::kNorm || i.op == Op::kGather || i.op == Op::kFetch ||
                       i.op == Op::kEvict;

  if (i.part != Part::kBoth) text += i.part == Part::kInput ? " input" : " weight";
  if (i.again) text += " again";
  if (i.block >= 0) text += fmt::format(" {} {}", of_unit ? "unit" : "block", i.block);
  if (i.segment >= 0) text += fmt::format(".{}", i.segment);
  if (i.lane >= 0) text += fmt::format(" lane {}", i.lane);
  if (i.micro >= 0) text += fmt::format(" micro {}", i.micro);
  if (i.parcel >= 0) text += fmt::format(" parcel {}", i.parcel);
  if (i.round >= 0) text += fmt::format(" round {}", i.round);
  if (i.peer >= 0) text += fmt::format(" {} rank {}", i.op == Op::kSend ? "to" : "from", i.peer);
  return text;
}

std::string to_string(const Program& program) {
  // A borrowed buffer has its name in another program.
  const auto name = [&program](const Operand& operand) {
    return operand.rank < 0 ? program.buffers.at(operand.buffer).name
                            : fmt::format("buffer {} of rank {}", operand.buffer, operand.rank);
  };

  // A line per instruction: its id, what it waits for, what it uses, what it signals.
  std::string text = fmt::format("rank {}\n", program.rank);
  for (const Queue& queue : program.queues) {
    text += fmt::format("queue {}\n", queue.name);
    for (const Instruction& i : queue.instructions) {
      text += fmt::format("  #{:<5} {}", i.id, to_string(i));
      if (!i.waits.empty()) text += fmt::format("  after e{}", fmt::join(i.waits, " e"));
      for (const Operand& operand : i.operands)
        text += fmt::format("  {} {}", role_name(operand.role), name(operand));
      for (const Add& a : i.adds) {
        text += fmt::format("  {} += {}", program.buffers.at(a.into).name,
                            program.buffers.at(a.from).name);
      }
      if (i.signal >= 0) text += fmt::format("  -> e{}", i.signal);
      text += '\n';
    }
  }

  text += "buffers\n";
  for (const Buffer& b : program.buffers)
    text += fmt::format("  {:<28} {:<10} {} B\n", b.name, kind_name(b.kind), b.bytes);
  return text;
}

}  // namespace tutti
