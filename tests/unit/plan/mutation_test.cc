// Every small damage to a plan is either found by the checker or changes nothing that matters. A mutant that the
// checker accepts must be proved equal to the original, by means that share no code with the checker:
//
//   - every rank has the same instructions as before (operation, coordinates, buffers, additions), each once: only
//     places in queues, waits and signals may differ
//   - every pair of instructions that touch the same memory, one of them writing, or that belong to the commit (norms
//   and
//     gathers before the vote before updates), or that both run backward on a rank, is ordered by the mutant as by the
//     original, in every interleaving (transitive closure, brute force). Slices of one buffer are different memory
//
// Runs that agree in both compute the same values (they are the same Mazurkiewicz trace), so such mutants are equal.
// Besides, they are run on hashes in random interleavings.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <bitset>
#include <cstdio>
#include <random>

#include "plan/check/ddp.h"
#include "plan/make/ddp.h"
#include "unit/plan/plan_runner.h"
#include "unit/plan/sample_models.h"

namespace tutti {

using test::PlanRunner;
using test::sample_model;

namespace {

constexpr size_t kMost = 1024;  // instructions of a plan

/// The same text for instructions that do the same. A fold's lane and micro are labels only, as are ids of those that
/// meet nobody.
std::string meaning(const Instruction& i) {
  std::string text = fmt::format("{} {} {} {} {} {}", op_name(i.op), meets(i.op) ? i.id : 0, i.block, i.segment,
                                 i.bucket, i.op == Op::kFold ? "" : fmt::format("{} {}", i.lane, i.micro));
  text += fmt::format(" r{} w{} h{}", fmt::join(i.reads, ","), fmt::join(i.writes, ","), fmt::join(i.holds, ","));
  for (const Add& a : i.adds) text += fmt::format(" {}+={}", a.into, a.from);
  return text;
}

/// All instructions of a plan, with the order between them by brute force.
class Closure {
 public:
  explicit Closure(const Plan& plan) : plan_(plan) {
    std::map<std::pair<int, int>, int> signaller;
    for (const Program& program : plan.programs) {
      for (const Queue& queue : program.queues) {
        int last = -1;
        for (const Instruction& i : queue.instructions) {
          const int n = static_cast<int>(list_.size());
          list_.push_back({program.rank, &i});
          edges_.emplace_back();
          if (last >= 0) edges_[last].push_back(n);
          if (i.signal >= 0) signaller[{program.rank, i.signal}] = n;
          last = n;
        }
      }
    }
    for (size_t n = 0; n < list_.size(); ++n) {
      for (int e : list_[n].second->waits) edges_[signaller.at({list_[n].first, e})].push_back(static_cast<int>(n));
    }
    // A meeting: what is before one member is before all of them (they act when all have come).
    for (size_t a = 0; a < list_.size(); ++a) {
      const Op op = list_[a].second->op;
      if (!meets(op) || op == Op::kAcquire) continue;
      for (size_t b = 0; b < list_.size(); ++b) {
        if (a != b && list_[b].second->op == op && list_[b].second->id == list_[a].second->id)
          partners_[a].push_back(b);
      }
    }
    after_.resize(list_.size());
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t n = list_.size(); n-- > 0;) {
        auto reach = after_[n];
        for (int m : edges_[n]) {
          reach |= after_[m];
          reach.set(m);
          const auto it = partners_.find(m);
          if (it == partners_.end()) continue;
          for (size_t partner : it->second) {
            reach |= after_[partner];
            reach.set(partner);
          }
        }
        if (reach == after_[n]) continue;
        after_[n] = reach;
        changed = true;
      }
    }
  }

  /// By (rank, meaning, how many such came before): number in the list.
  std::map<std::pair<int, std::string>, int> names() const {
    std::map<std::pair<int, std::string>, int> map, count;
    for (size_t n = 0; n < list_.size(); ++n) {
      const std::pair<int, std::string> key{list_[n].first, meaning(*list_[n].second)};
      map[{key.first, fmt::format("{} ({})", key.second, count[key]++)}] = static_cast<int>(n);
    }
    return map;
  }
  size_t size() const { return list_.size(); }
  bool before(int a, int b) const { return after_[a].test(b); }
  bool depend(int a, int b) const {
    const auto& [ra, ia] = list_[a];
    const auto& [rb, ib] = list_[b];
    const auto commit = [](Op op) { return op == Op::kNorm || op == Op::kGather || op == Op::kUpdate; };
    if (ra == rb && ((ia->op == Op::kVote && commit(ib->op)) || (ib->op == Op::kVote && commit(ia->op)))) return true;
    if (ra == rb && ia->op == Op::kBackward && ib->op == Op::kBackward) return true;
    // Norm reads the rank's own slice, Gather writes the others.
    if (ia->op != ib->op && is_slice_op(ia->op) && is_slice_op(ib->op)) return false;
    const auto meet = [&](const auto& x, const auto& y) {
      for (const auto& e : x) {
        if (y.contains(e)) return true;
      }
      return false;
    };
    const auto [reads_a, writes_a] = touched(a);
    const auto [reads_b, writes_b] = touched(b);
    return meet(writes_a, writes_b) || meet(writes_a, reads_b) || meet(reads_a, writes_b);
  }

 private:
  static bool is_slice_op(Op op) { return op == Op::kNorm || op == Op::kGather; }
  using Set = std::set<std::pair<int, int>>;  // (rank, buffer)
  std::pair<Set, Set> touched(int n) const {
    const auto& [rank, i] = list_[n];
    Set reads, writes;
    for (int b : i->reads) reads.insert({rank, b});
    for (int b : i->writes) writes.insert({rank, b});
    for (const Add& a : i->adds) {
      reads.insert({rank, a.from});
      writes.insert({rank, a.into});
    }
    if (i->op != Op::kReduce && i->op != Op::kUpdate) return {reads, writes};
    for (const Program& other : plan_.programs) {
      for (size_t b = 0; b < other.buffers.size(); ++b) {
        const Buffer& buffer = other.buffers[b];
        if (buffer.kind != BufferKind::kGradient || buffer.partial < 0) continue;
        const auto& units = plan_.buckets[i->bucket].units;
        const bool mine = i->op == Op::kReduce ? std::count(units.begin(), units.end(), buffer.unit) > 0
                                               : buffer.partial == 0 && buffer.unit == i->block;
        if (mine) reads.insert({other.rank, static_cast<int>(b)});
      }
    }
    return {reads, writes};
  }

  const Plan& plan_;
  std::vector<std::pair<int, const Instruction*>> list_;  // with the rank
  std::vector<std::vector<int>> edges_;
  std::map<size_t, std::vector<size_t>> partners_;
  std::vector<std::bitset<kMost>> after_;
};

/// Why the mutant is not proved equal; empty: it is.
std::string difference(const Plan& original, const Plan& mutant) {
  const Closure a(original), b(mutant);
  if (a.size() > kMost) return "too large";
  const auto in_a = a.names(), in_b = b.names();
  if (a.size() != b.size() || in_a.size() != a.size() || in_b.size() != b.size()) return "a number of instructions";
  std::vector<int> number(a.size());
  for (const auto& [name, n] : in_a) {
    const auto it = in_b.find(name);
    if (it == in_b.end()) return "rank " + std::to_string(name.first) + " lost " + name.second;
    number[n] = it->second;
  }
  for (size_t x = 0; x < a.size(); ++x) {
    for (size_t y = 0; y < a.size(); ++y) {
      const int i = static_cast<int>(x), j = static_cast<int>(y);
      if (a.before(i, j) != b.before(number[i], number[j]) && a.depend(i, j)) return "an order";
    }
  }
  return "";
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  /// Damages the plan in one place; empty when the drawn damage cannot be done there.
  std::string damage(Plan& plan) {
    Program& program = pick(plan.programs);
    Queue& queue = pick(program.queues);
    auto& list = queue.instructions;
    const size_t at = below(list.size());
    Instruction& i = list[at];
    const std::string where = fmt::format("rank {} {} #{} {}", program.rank, queue.name, at, to_string(i));
    switch (below(14)) {
      case 0:
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
        return "drop " + where;
      case 1:
        if (at + 1 == list.size()) return "";
        std::swap(list[at], list[at + 1]);
        return "swap with the next " + where;
      case 2: {
        const size_t other = below(list.size());
        if (other == at) return "";
        std::swap(list[at], list[other]);
        return fmt::format("swap with #{} {}", other, where);
      }
      case 3: {
        Instruction twin = i;
        twin.id = 100000;
        twin.signal = -1;
        list.insert(list.begin() + static_cast<std::ptrdiff_t>(below(list.size())), twin);
        return "double " + where;
      }
      case 4:
        if (i.waits.empty()) return "";
        i.waits.erase(i.waits.begin() + static_cast<std::ptrdiff_t>(below(i.waits.size())));
        return "drop a wait of " + where;
      case 5:
        if (i.waits.empty()) return "";
        return retarget(pick(i.waits), program.events, "a wait of " + where);
      case 6:
        if (i.signal < 0) return "";
        i.signal = -1;
        return "drop the signal of " + where;
      case 7:
        if (i.adds.empty()) return "";
        i.adds.erase(i.adds.begin() + static_cast<std::ptrdiff_t>(below(i.adds.size())));
        return "drop an addition of " + where;
      case 8: {
        if (i.adds.empty()) return "";
        Add& a = pick(i.adds);
        if (i.adds.size() > 1 && below(2) == 0) {
          std::swap(i.adds[0], i.adds[1]);
          return "swap additions of " + where;
        }
        std::swap(a.into, a.from);
        return "turn an addition of " + where;
      }
      case 9: {
        if (i.adds.empty()) return "";
        Add& a = pick(i.adds);
        return retarget(below(2) == 0 ? a.into : a.from, static_cast<int>(program.buffers.size()),
                        "an addition of " + where);
      }
      case 10:
        if (i.writes.empty()) return "";
        return retarget(pick(i.writes), static_cast<int>(program.buffers.size()), "a write of " + where);
      case 11:
        if (i.reads.empty()) return "";
        return retarget(pick(i.reads), static_cast<int>(program.buffers.size()), "a read of " + where);
      case 12: {
        std::vector<int*> coordinates;
        for (int* c : {&i.block, &i.segment, &i.lane, &i.micro, &i.bucket}) {
          const bool label = i.op == Op::kFold && (c == &i.lane || c == &i.micro);
          if (*c >= 0 && !label) coordinates.push_back(c);
        }
        if (coordinates.empty()) return "";
        return retarget(*pick(coordinates), 4, "a coordinate of " + where);
      }
      default: {
        if (program.queues.size() == 1) return "";
        Instruction moved = i;
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
        auto& other = program.queues[&queue == &program.queues[0] ? 1 : 0].instructions;
        other.insert(other.begin() + static_cast<std::ptrdiff_t>(below(other.size() + 1)), moved);
        return "move to another queue " + where;
      }
    }
  }
  uint64_t below(uint64_t n) { return random_() % n; }

 private:
  template <typename T>
  T& pick(std::vector<T>& list) {
    return list[below(list.size())];
  }
  std::string retarget(int& value, int size, const std::string& what) {
    const int old = value;
    value = static_cast<int>(below(static_cast<uint64_t>(size)));
    return value == old ? "" : fmt::format("retarget {} from {} to {}", what, old, value);
  }
  std::mt19937_64 random_;
};

struct Case {
  int blocks;
  bool tied;
  int ranks, lanes, micro_batches;
  bool overlap;
};

constexpr Case kCases[] = {{3, true, 1, 3, 1, true},  {3, false, 1, 4, 1, false}, {3, true, 2, 4, 2, true},
                           {2, false, 3, 5, 1, true}, {5, true, 2, 3, 1, true},   {2, true, 2, 4, 3, false},
                           {1, false, 1, 1, 1, true}, {4, false, 3, 8, 1, true},  {3, true, 2, 6, 1, true}};

}  // namespace

TEST(Mutation, EveryDamagedPlanIsRejectedOrProvedEqual) {
  // Another one every time; --gtest_random_seed=N repeats a run.
  const uint64_t given = GTEST_FLAG_GET(random_seed), seed = given != 0 ? given : 1 + std::random_device{}() % 99999;
  std::printf("seed %lu\n", seed);
  Mutator mutator(seed);
  int rejected = 0, equal = 0;
  for (const Case& c : kCases) {
    const ModelShape model = sample_model(c.blocks, c.tied);
    DdpOptions options;
    options.ranks = c.ranks, options.lanes = c.lanes, options.micro_batches = c.micro_batches,
    options.overlap = c.overlap;
    options.bucket_floats = 1;
    const Plan original = plan_ddp(model, options);
    ASSERT_EQ(difference(original, original), "");
    for (int round = 0; round < 700; ++round) {
      Plan mutant = original;
      const std::string what = mutator.damage(mutant);
      if (what.empty()) continue;
      if (!check_plan(mutant, model, c.micro_batches).empty()) {
        ++rejected;
        continue;
      }
      ++equal;
      ASSERT_EQ(difference(original, mutant), "") << "seed " << seed << ": accepted: " << what;
      for (int k = 0; k < 4; ++k) {
        const auto problems = PlanRunner(mutant, model, c.micro_batches, k % 2 == 0, mutator.below(1u << 30)).run(2);
        ASSERT_TRUE(problems.empty()) << "seed " << seed << ": accepted: " << what << ": " << problems[0];
      }
    }
  }
  std::printf("%d rejected, %d accepted and equal\n", rejected, equal);
  EXPECT_GT(rejected, 1000);
  EXPECT_GT(equal, 0);  // the checker does not simply want the original back
}

}  // namespace tutti
