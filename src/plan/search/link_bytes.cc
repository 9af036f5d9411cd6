// How many bytes a plan moves between which ranks, counted from its transfers and operands, as they
// are whatever carries them.
#include "plan/search/link_bytes.h"

namespace tutti {

namespace {

constexpr int64_t kFloat = sizeof(float);

/// Bytes of an Exchange, from one tensor rank to another.
int64_t exchange_bytes(const Plan& plan, const ModelShape& model, const Instruction& i, int from,
                       int to) {
  const Range mine = plan.places[from].columns, theirs = plan.places[to].columns;
  const int64_t tensor =
      exchanged_bytes(model.blocks[i.block].segments[i.segment].outputs[i.output], i);

  // A gather brings all of the sender's columns. A scatter brings one partial sum for each maximal
  // subtree of them, cut to the receiver's columns.
  if (i.exchange == Exchange::kGather) return mine.size() * tensor;
  return static_cast<int64_t>(subtrees(mine, model.columns).size()) * (tensor / model.columns) *
         theirs.size();
}

/// Bytes of a Reduce: what owners take from others, then what they return.
void add_sum(const SumTransfer& sum, LinkBytes& bytes) {
  for (const UnitSum& unit : sum.units)
    for (size_t m = 0; m < sum.ranks.size(); ++m) {
      for (const SumSource& source : unit.sources)
        for (const SumSource::Term& term : source.terms)
          if (term.rank != sum.ranks[m])
            bytes[term.rank][sum.ranks[m]] += overlap(unit.slices[m], source.to).size() * kFloat;
      for (size_t to = 0; sum.returned != Return::kNone && to < sum.ranks.size(); ++to)
        if (to != m) bytes[sum.ranks[m]][sum.ranks[to]] += unit.slices[m].size() * kFloat;
    }
}

}  // namespace

int64_t exchanged_bytes(const OutputShape& output, const Instruction& exchange) {
  if (exchange.part != Part::kInput) return output.bytes;

  // The gradient of what was gathered is a float32 partial sum of what was read; that of what was
  // scattered has the type that was read.
  return exchange.exchange == Exchange::kScatter
             ? output.read_bytes / output.read_element_bytes * kFloat
             : output.read_bytes;
}

LinkBytes link_bytes(const Plan& plan, const ModelShape& model) {
  LinkBytes bytes(plan.programs.size(), std::vector<int64_t>(plan.programs.size(), 0));
  for (const Program& program : plan.programs) {
    for (const Queue& queue : program.queues) {
      for (const Instruction& i : queue.instructions) {
        const std::vector<int> members = members_of(plan, i);

        // Every sender counts what it sends.
        if (i.op == Op::kSend) bytes[program.rank][i.peer] += i.bytes;
        if (i.op == Op::kExchange)
          for (int to : members)
            if (to != program.rank)
              bytes[program.rank][to] += exchange_bytes(plan, model, i, program.rank, to);

        // What an Update borrows is read in the lender's window.
        for (const Operand& operand : i.operands)
          if (operand.rank >= 0) bytes[operand.rank][program.rank] += operand.range.size() * kFloat;
        if (members.front() != program.rank) continue;  // the first member counts for all
        if (i.op == Op::kReduce) add_sum(plan.sums[i.transfer], bytes);
        if (i.op == Op::kGather)
          for (const auto& copy : plan.copies[i.transfer].copies)
            if (copy.from != copy.to) bytes[copy.from][copy.to] += copy.bytes;
      }
    }
  }
  return bytes;
}

}  // namespace tutti
