// Every instruction that moves something has an object that knows all its addresses, made once and
// found by the instruction's id. Queues run at the same time, so each has scratch of its own.
#include "engine/host/host_travel.h"

#include <algorithm>

#include "comm/posted.h"
#include "config/timeout.h"
#include "plan/ir/tags.h"

namespace tutti {

namespace {

/// What a queue's reduces hold for messages: they run one after another.
int64_t queue_message_bytes(const Plan& plan, const Queue& queue, int rank, bool windows) {
  int64_t bytes = 0;
  for (const Instruction& i : queue.instructions)
    if (i.op == Op::kReduce)
      bytes = std::max(bytes, SumPull::scratch_bytes(plan.sums[i.transfer], rank, windows));
  return align_up(bytes, 256);
}

TransferName name_of(const Instruction& i) { return {i.id, i.parcel, to_string(i)}; }

}  // namespace

bool reaches_all(const Transport& transport) {
  for (int r = 0; r < transport.size(); ++r)
    if (transport.window_of(r).empty()) return false;
  return true;
}

int64_t message_bytes(const Plan& plan, int rank, bool windows) {
  int64_t bytes = 0;
  for (const Queue& queue : plan.programs[rank].queues)
    bytes += queue_message_bytes(plan, queue, rank, windows);
  return bytes;
}

HostTravel::HostTravel(const EngineParts& parts, const Station& station, Which which)
    : p_(parts),
      station_(station),
      which_(which),
      plan_(parts.plans.of(which)),
      program_(parts.program(which)),
      timeout_(timeout_of(parts.training.job)),
      windows_(reaches_all(parts.transport)),
      scratch_(BufferKind::kMessage,
               static_cast<size_t>(message_bytes(plan_, program_.rank, windows_)),
               parts.gauges.accounts),
      roll_call_(plan_, parts.context.rank, parts.transport, parts.context.clock,
                 which == Which::kSteps ? kRollCall : kForwardRollCall) {
  // Queues run at the same time, so each has scratch of its own, which its instructions share one
  // after another.
  for (const Queue& queue : program_.queues) {
    const int64_t bytes = queue_message_bytes(plan_, queue, program_.rank, windows_);
    const std::span<std::byte> scratch = scratch_.take(static_cast<size_t>(bytes));
    for (const Instruction& i : queue.instructions) prepare(i, scratch);
  }
}

/// Makes what an instruction runs with; all addresses are known from here on.
void HostTravel::prepare(const Instruction& i, std::span<std::byte> scratch) {
  if (i.op == Op::kReduce) prepare_reduce(i, scratch);
  if (i.op == Op::kGather) prepare_gather(i);
  if (i.op == Op::kExchange)
    exchanges_[i.id] = std::make_unique<ColumnExchange>(i.id, plan_.groups[i.group],
                                                        p_.training.shape.columns, p_.transport);
}

void HostTravel::prepare_reduce(const Instruction& i, std::span<std::byte> scratch) {
  const SumTransfer& transfer = plan_.sums[i.transfer];
  std::vector<std::vector<float*>> levels;
  for (const UnitSum& unit : transfer.units)
    levels.push_back(levels_of(plan_, i, unit, program_.rank, [this](int b) { return floats(b); }));
  sums_[i.id] = make_sum_pull(transfer, name_of(i), p_.transport, p_.state.memory->window(),
                              std::move(levels), scratch);
}

void HostTravel::prepare_gather(const Instruction& i) {
  const CopyTransfer& transfer = plan_.copies[i.transfer];

  // Copies after the Update refresh what shared parameters have elsewhere. A parcel that a step
  // gathers a second time is in the windows already, so the ranks need not come together for it
  // again.
  if (transfer.updated) {
    refreshes_.insert(i.id);
  } else if (which_ == Which::kSteps && !gathered_.insert({i.parcel, i.group}).second && windows_) {
    repeats_.insert(i.id);
  }
  copies_[i.id] =
      std::make_unique<CopyPull>(transfer, name_of(i), p_.transport, p_.state.memory->window(),
                                 [this](int b) { return memory(b); });
}

void HostTravel::set(Handlers& on) {
  const auto set = [&on](Op op, Handler handler) { on[static_cast<int>(op)] = std::move(handler); };
  set(Op::kReduce, [this](const Instruction& i, uint64_t run) {
    const std::function<void()> hear = call_roll(i);
    sums_.at(i.id)->run(run, patience(), hear);
  });
  set(Op::kGather, [this](const Instruction& i, uint64_t run) { gather(i, run); });
  set(Op::kExchange, [this](const Instruction& i, uint64_t run) { exchange(i, run); });
  for (Op op : {Op::kSend, Op::kRecv})
    set(op, [this](const Instruction& i, uint64_t run) { message(i, run); });
  for (Op op : {Op::kFetch, Op::kEvict})
    set(op, [this](const Instruction& i, uint64_t) { fetch_or_evict(i); });
}

void HostTravel::refresh() {
  for (uint32_t id : refreshes_) copies_.at(id)->run(0, patience());
}

/// Run r of the program reads parameters after r updates, or after r + 1 if it comes after the
/// Update of its own step.
void HostTravel::gather(const Instruction& i, uint64_t run) {
  std::function<void()> hear = call_roll(i);
  if (repeats_.contains(i.id)) hear = {};  // the next one on its way does
  copies_.at(i.id)->run(refreshes_.contains(i.id) ? run + 1 : run, patience(), hear);
}

void HostTravel::exchange(const Instruction& i, uint64_t run) {
  ColumnExchange& exchange = *exchanges_.at(i.id);
  const std::function<void()> hear = call_roll(i);
  const int64_t bytes = station_.exchanged_bytes(i);
  if (i.exchange == Exchange::kGather) {
    std::vector<const std::byte*> parts;
    for (int b : i.flow.in) parts.push_back(memory(b));
    return exchange.gather(parts, static_cast<size_t>(bytes), memory(i.flow.out[0]), run,
                           patience(), hear);
  }

  // A scatter adds up in its inputs, and what arrives of other ranks waits in the scratch that the
  // plan gives it.
  std::vector<float*> sums, parts;
  for (int b : i.flow.in) sums.push_back(floats(b));
  for (int b : i.flow.out) parts.push_back(floats(b));
  std::span<std::byte> scratch;
  if (i.flow.work >= 0)
    scratch = {memory(i.flow.work), static_cast<size_t>(program_.buffers[i.flow.work].bytes)};
  exchange.scatter(sums, bytes / static_cast<int64_t>(sizeof(float)), parts, run, patience(),
                   scratch, hear);
}

void HostTravel::message(const Instruction& i, uint64_t run) {
  const std::function<void()> hear = call_roll(i);
  named(to_string(i), run, [&] {
    Posted posted(p_.transport);
    const std::span<std::byte> bytes(memory(buffer_of(i, OperandRole::kMessage)),
                                     static_cast<size_t>(i.bytes));
    const Tag tag{i.id, 0, run};
    if (i.op == Op::kSend) {
      posted.send(i.peer, tag, bytes);
    } else {
      posted.recv(i.peer, tag, bytes);
    }
    hear();
    posted.wait_all(patience());
  });
}

void HostTravel::fetch_or_evict(const Instruction& i) {
  const auto stored = operands_of(i, OperandRole::kStored),
             resident = operands_of(i, OperandRole::kResident);
  for (size_t k = 0; k < stored.size(); ++k) {
    const auto bytes = static_cast<size_t>(program_.buffers[stored[k]->buffer].bytes);
    std::byte *tier = memory(stored[k]->buffer), *there = memory(resident[k]->buffer);
    if (i.op == Op::kFetch) {
      p_.state.memory->fetch(tier, {there, bytes});
    } else {
      p_.state.memory->evict(tier, {there, bytes});
    }
  }
}

std::function<void()> HostTravel::call_roll(const Instruction& i) {
  // Hearing waits for the others, so it comes once all that this rank gives is on its way.
  roll_call_.tell(i, static_cast<uint64_t>(step_) + 1, patience());
  return [this, &i] { roll_call_.hear(i, patience()); };
}

}  // namespace tutti
