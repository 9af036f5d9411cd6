// The hash of a plan sees every field of everything in it: a plan with one of each thing is changed
// leaf by leaf.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "plan/ir/program.h"

namespace tutti {

namespace {

/// Goes over a plan and changes its `target`-th leaf: a number, a flag, a name, or a list, which
/// grows. Structs are taken apart by structured bindings, which do not compile when a field was
/// added and not named here.
class Change {
 public:
  explicit Change(int target) : target_(target) {}
  /// How many leaves there are, once it has gone over a plan.
  int leaves() const { return leaves_; }

  template <typename... T>
  void all(T&... values) {
    (leaf(values), ...);
  }
  template <typename T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void leaf(T& value) {
    if (leaves_++ != target_) return;
    if constexpr (std::is_same_v<T, bool>)
      value = !value;
    else
      value = static_cast<T>(static_cast<int64_t>(value) + 1);
  }
  void leaf(std::string& text) {
    if (leaves_++ == target_) text += "x";
  }
  template <typename T>
  void leaf(std::vector<T>& list) {
    EXPECT_FALSE(list.empty()) << "the sample has none of some list: its fields are not changed";
    if (leaves_++ == target_) list.push_back(list.front());
    for (T& value : list) leaf(value);
  }
  template <typename A, typename B>
  void leaf(std::pair<A, B>& pair) {
    all(pair.first, pair.second);
  }
  void leaf(Range& range) {
    auto& [begin, end] = range;
    all(begin, end);
  }
  void leaf(Coordinates& at) {
    auto& [data, tensor, pipeline] = at;
    all(data, tensor, pipeline);
  }
  void leaf(Mesh& mesh) {
    auto& [data, tensor, pipeline, shards] = mesh;
    all(data, tensor, pipeline, shards);
  }
  void leaf(Batch& batch) {
    auto& [lanes, micro_batches, size] = batch;
    all(lanes, micro_batches, size);
  }
  void leaf(UnitRange& part) {
    auto& [unit, range] = part;
    all(unit, range);
  }
  void leaf(SumSource::Term& term) {
    auto& [rank, offset] = term;
    all(rank, offset);
  }
  void leaf(SumSource& source) {
    auto& [to, terms] = source;
    all(to, terms);
  }
  void leaf(UnitSum& sum) {
    auto& [unit, slices, sources] = sum;
    all(unit, slices, sources);
  }
  void leaf(LevelSum& sum) {
    auto& [level, terms, order] = sum;
    all(level, terms, order);
  }
  void leaf(SumTransfer& sum) {
    auto& [ranks, units, sums, round, rounds, levels, by_hosts, ordered, returned] = sum;
    all(ranks, units, sums, round, rounds, levels, by_hosts, ordered, returned);
  }
  void leaf(CopyTransfer::Copy& copy) {
    auto& [from, to, offset, buffer, at, bytes] = copy;
    all(from, to, offset, buffer, at, bytes);
  }
  void leaf(CopyTransfer& transfer) {
    auto& [updated, gradients, ranks, copies] = transfer;
    all(updated, gradients, ranks, copies);
  }
  void leaf(Owned& owned) {
    auto& [range, ranks] = owned;
    all(range, ranks);
  }
  void leaf(Ownership& ownership) {
    auto& [sums, parameters, moments] = ownership;
    all(sums, parameters, moments);
  }
  void leaf(RankPlace& place) {
    auto& [at, columns, lanes] = place;
    all(at, columns, lanes);
  }
  void leaf(PlacedRange& placed) {
    auto& [range, at] = placed;
    all(range, at);
  }
  void leaf(Buffer& buffer) {
    auto& [name, kind, bytes, unit, level, range, window, window_offset, offloaded, lent, same_as,
           temporaries, placed] = buffer;
    all(name, kind, bytes, unit, level, range, window, window_offset, offloaded, lent, same_as,
        temporaries, placed);
  }
  void leaf(Operand& operand) {
    auto& [role, access, buffer, unit, range, rank] = operand;
    all(role, access, buffer, unit, range, rank);
  }
  void leaf(UnitBuffer& value) {
    auto& [unit, buffer] = value;
    all(unit, buffer);
  }
  void leaf(Flow& flow) {
    auto& [in, out, grad_out, grad_in, saved, deferred, work, parameters, gradients] = flow;
    all(in, out, grad_out, grad_in, saved, deferred, work, parameters, gradients);
  }
  void leaf(Add& sum) {
    auto& [into, from] = sum;
    all(into, from);
  }
  void leaf(Instruction& instruction) {
    auto& [op, id, block, segment, lane, micro, waits, signal, adds, operands, parcel, transfer,
           part, again, round, group, peer, bytes, exchange, output, flow] = instruction;
    all(op, id, block, segment, lane, micro, waits, signal, adds, operands, parcel, transfer, part,
        again, round, group, peer, bytes, exchange, output, flow);
  }
  void leaf(Queue& queue) {
    auto& [name, instructions, use] = queue;
    all(name, instructions, use);
  }
  void leaf(Program& program) {
    auto& [rank, queues, buffers, events] = program;
    all(rank, queues, buffers, events);
  }
  void leaf(Plan& plan) {
    auto& [ranks, programs, groups, mesh, batch, micro_order, training, slots, places, homes,
           ownership, parcels, sums, copies] = plan;
    all(ranks, programs, groups, mesh, batch, micro_order, training, slots, places, homes,
        ownership, parcels, sums, copies);
  }

 private:
  const int target_;
  int leaves_ = 0;
};

/// One of everything; of what differs from its default, nothing matters.
Plan sample() {
  Instruction i;
  i.waits = {3};
  i.adds = {{5, 6}};
  i.operands = {{}};
  i.flow = {{1}, {2}, {3}, {4}, 5, 6, 7, {{1, 2}}, {{3, 4}}};
  Buffer buffer;
  buffer.placed = {{}};
  Program program;
  program.queues = {{"queue", {i}, QueueUse::kCompute}};
  program.buffers = {buffer};
  UnitSum unit{0, {{}}, {{{}, {{}}}}};
  SumTransfer sum;
  sum.ranks = {0};
  sum.units = {unit};
  sum.sums = {{0, {1}, {{0, 1}}}};
  CopyTransfer copies;
  copies.ranks = {0};
  copies.copies = {{}};
  const std::vector<Owned> owned{{{}, {0}}};
  Plan plan;
  plan.programs = {program};
  plan.groups = {{0}};
  plan.places = {{{}, {}, {0}}};
  plan.homes = {{}};
  plan.ownership = {{owned, owned, owned}};
  plan.parcels = {{{}}};
  plan.sums = {sum};
  plan.copies = {copies};
  return plan;
}

}  // namespace

TEST(PlanHash, IsAFunctionOfThePlan) { EXPECT_EQ(plan_hash(sample()), plan_hash(sample())); }

TEST(PlanHash, SeesEveryFieldOfEverything) {
  Plan untouched = sample();
  Change none(-1);
  none.leaf(untouched);
  std::set<uint64_t> hashes{plan_hash(sample())};
  ASSERT_EQ(plan_hash(untouched), *hashes.begin());
  ASSERT_GT(none.leaves(), 100);
  for (int leaf = 0; leaf < none.leaves(); ++leaf) {
    Plan plan = sample();
    Change(leaf).leaf(plan);
    EXPECT_TRUE(hashes.insert(plan_hash(plan)).second) << "leaf " << leaf;
  }
}

TEST(PlanHash, SeesWhereOneListEndsAndTheNextBegins) {
  Plan first = sample(), second = sample();
  Flow &one = first.programs[0].queues[0].instructions[0].flow,
       &other = second.programs[0].queues[0].instructions[0].flow;
  one.in = {1, 2}, one.out = {};
  other.in = {1}, other.out = {2};
  EXPECT_NE(plan_hash(first), plan_hash(second));
}

}  // namespace tutti
