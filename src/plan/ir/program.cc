// Names, hash and readable form of a plan.
#include "plan/ir/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/hash.h"

namespace tutti {

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
  }
  return "?";
}

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
  }
  return "?";
}

namespace {

/// Every list is preceded by its length, so that two different plans never feed the same bytes.
class Hasher {
 public:
  void add(int64_t value) { sha_.add(static_cast<uint64_t>(value)); }
  void add(const std::string& text) {
    add(static_cast<int64_t>(text.size()));
    sha_.add(std::string_view(text));
  }
  template <typename T>
  void add_all(const std::vector<T>& values) {
    add(static_cast<int64_t>(values.size()));
    for (const T& value : values) add(static_cast<int64_t>(value));
  }
  void add(const Instruction& i) {
    for (int64_t value : {static_cast<int64_t>(i.op), static_cast<int64_t>(i.id)}) add(value);
    for (int value : {i.block, i.segment, i.lane, i.micro, i.bucket, i.signal}) add(static_cast<int64_t>(value));
    for (const auto* list : {&i.waits, &i.reads, &i.writes, &i.holds}) add_all(*list);
    add(static_cast<int64_t>(i.adds.size()));
    for (const Add& a : i.adds) {
      add(static_cast<int64_t>(a.into));
      add(static_cast<int64_t>(a.from));
    }
    for (int value :
         {static_cast<int>(i.part), static_cast<int>(i.again), i.round, i.group, i.peer, static_cast<int>(i.exchange)})
      add(static_cast<int64_t>(value));
    for (const auto* list : {&i.flow.in, &i.flow.out, &i.flow.grad_out, &i.flow.grad_in}) add_all(*list);
    for (int value : {i.flow.saved, i.flow.deferred, i.flow.work}) add(static_cast<int64_t>(value));
    for (const auto* list : {&i.flow.parameters, &i.flow.gradients}) {
      add(static_cast<int64_t>(list->size()));
      for (const UnitBuffer& u : *list) add(static_cast<int64_t>(u.unit)), add(static_cast<int64_t>(u.buffer));
    }
  }
  void add(const Buffer& b) {
    add(b.name);
    for (int64_t value : {static_cast<int64_t>(b.kind), b.bytes}) add(value);
    for (int value : {b.unit, b.partial, b.level}) add(static_cast<int64_t>(value));
    for (int64_t value : {b.range.begin, b.range.end, static_cast<int64_t>(b.window), b.window_offset,
                          static_cast<int64_t>(b.offloaded)})
      add(value);
  }
  uint64_t finish() {
    const Digest digest = sha_.finish();
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= static_cast<uint64_t>(digest[i]) << (8 * i);
    return value;
  }

 private:
  Sha256 sha_;
};

}  // namespace

uint64_t plan_hash(const Plan& plan) {
  Hasher hash;
  for (int64_t value : {int64_t{plan.lanes}, int64_t{plan.ranks}, static_cast<int64_t>(plan.buckets.size())}) {
    hash.add(value);
  }
  for (const Bucket& bucket : plan.buckets) {
    hash.add_all(bucket.units);
    hash.add_all(bucket.unit_offset);
    hash.add(bucket.partial_size);
  }
  hash.add(static_cast<int64_t>(plan.groups.size()));
  for (const auto& group : plan.groups) hash.add_all(group);
  hash.add(static_cast<int64_t>(plan.programs.size()));
  for (const Program& program : plan.programs) {
    for (int64_t value : {int64_t{program.rank}, program.lanes.begin, program.lanes.end, int64_t{program.events}}) {
      hash.add(value);
    }
    hash.add(static_cast<int64_t>(program.buffers.size()));
    for (const Buffer& buffer : program.buffers) hash.add(buffer);
    hash.add(static_cast<int64_t>(program.queues.size()));
    for (const Queue& queue : program.queues) {
      hash.add(queue.name);
      hash.add(static_cast<int64_t>(queue.instructions.size()));
      for (const Instruction& instruction : queue.instructions) hash.add(instruction);
    }
  }
  return hash.finish();
}

std::string to_string(const Instruction& i) {
  std::string text = op_name(i.op);
  const bool of_unit = i.op == Op::kUpdate || i.op == Op::kFold || i.op == Op::kReduce || i.op == Op::kNorm ||
                       i.op == Op::kGather || i.op == Op::kFetch || i.op == Op::kEvict;
  if (i.part != Part::kBoth) text += i.part == Part::kInput ? " input" : " weight";
  if (i.again) text += " again";
  if (i.block >= 0) text += fmt::format(" {} {}", of_unit ? "unit" : "block", i.block);
  if (i.segment >= 0) text += fmt::format(".{}", i.segment);
  if (i.lane >= 0) text += fmt::format(" lane {}", i.lane);
  if (i.micro >= 0) text += fmt::format(" micro {}", i.micro);
  if (i.bucket >= 0) text += fmt::format(" bucket {}", i.bucket);
  if (i.round >= 0) text += fmt::format(" round {}", i.round);
  if (i.peer >= 0) text += fmt::format(" {} rank {}", i.op == Op::kSend ? "to" : "from", i.peer);
  return text;
}

std::string to_string(const Program& program) {
  const auto names = [&program](const std::vector<int>& buffers) {
    std::vector<std::string> list;
    for (int b : buffers) list.push_back(program.buffers.at(b).name);
    return fmt::format("{}", fmt::join(list, ", "));
  };
  std::string text = fmt::format("rank {} lanes [{}, {})\n", program.rank, program.lanes.begin, program.lanes.end);
  for (const Queue& queue : program.queues) {
    text += fmt::format("queue {}\n", queue.name);
    for (const Instruction& i : queue.instructions) {
      text += fmt::format("  #{:<5} {}", i.id, to_string(i));
      if (!i.waits.empty()) text += fmt::format("  after e{}", fmt::join(i.waits, " e"));
      if (!i.reads.empty()) text += "  reads " + names(i.reads);
      if (!i.writes.empty()) text += "  writes " + names(i.writes);
      for (const Add& a : i.adds) {
        text += fmt::format("  {} += {}", program.buffers.at(a.into).name, program.buffers.at(a.from).name);
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
