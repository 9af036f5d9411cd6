// Every small damage to the programs of a mesh is either found by the checker, or changes nothing: then the mutant is
// run on hashes (mesh_runner.h), in several interleavings, and must end with the state of the plan it was made from.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "plan/check/prove.h"
#include "unit/plan/mesh_runner.h"
#include "unit/plan/sample_meshes.h"

namespace tutti {

using test::mesh_model;
using test::MeshModel;
using test::MeshRunner;

namespace {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}
  uint64_t below(uint64_t n) { return random_() % n; }

  /// Damages the plan in one place; empty when the drawn damage cannot be done there.
  std::string damage(Plan& plan) {
    Program& program = pick(plan.programs);
    Queue& queue = pick(program.queues);
    if (queue.instructions.empty()) return "";
    const size_t at = below(queue.instructions.size());
    const std::string where =
        fmt::format("rank {} {} #{} {}", program.rank, queue.name, at, to_string(queue.instructions[at]));
    const std::string what = below(8) == 0   ? damage_buffer(program)
                             : below(3) == 0 ? damage_order(program, queue, at)
                             : below(2) == 0 ? damage_flow(program, queue.instructions[at])
                                             : damage_words(plan, program, queue.instructions[at]);
    return what.empty() ? "" : what + " of " + where;
  }

 private:
  template <typename T>
  T& pick(std::vector<T>& list) {
    return list[below(list.size())];
  }
  template <typename T>
  static void erase(std::vector<T>& list, size_t at) {
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
  }
  std::string retarget(int& value, int first, int size, const std::string& what) {
    const int old = value;
    value = first + static_cast<int>(below(static_cast<uint64_t>(size)));
    return value == old ? "" : fmt::format("retarget {} from {} to {}", what, old, value);
  }

  std::string damage_order(Program& program, Queue& queue, size_t at) {
    auto& list = queue.instructions;
    Instruction& i = list[at];
    switch (below(9)) {
      case 0:
        erase(list, at);
        return "drop";
      case 1:
        if (at + 1 == list.size()) return "";
        std::swap(list[at], list[at + 1]);
        return "swap with the next";
      case 2: {
        const size_t other = below(list.size());
        if (other == at) return "";
        std::swap(list[at], list[other]);
        return fmt::format("swap with #{}", other);
      }
      case 3: {
        Instruction twin = i;
        twin.id = 200000;
        twin.signal = -1;
        list.insert(list.begin() + static_cast<std::ptrdiff_t>(below(list.size())), twin);
        return "a twin";
      }
      case 4:
        if (i.waits.empty()) return "";
        erase(i.waits, below(i.waits.size()));
        return "drop a wait";
      case 5:
        if (i.waits.empty()) return "";
        return retarget(pick(i.waits), 0, program.events, "a wait");
      case 6:
        if (i.signal < 0) return "";
        i.signal = -1;
        return "drop the signal";
      case 7: {
        const Instruction moved = i;
        Queue& other = pick(program.queues);
        if (&other == &queue) return "";
        erase(list, at);
        other.instructions.insert(
            other.instructions.begin() + static_cast<std::ptrdiff_t>(below(other.instructions.size() + 1)), moved);
        return "move to queue " + other.name;
      }
      default:
        return retarget(i.signal, 0, program.events + 1, "the signal");
    }
  }

  std::string damage_words(Plan& plan, Program& program, Instruction& i) {
    const int buffers = static_cast<int>(program.buffers.size());
    switch (below(16)) {
      case 0:
        if (i.reads.empty()) return "";
        return retarget(pick(i.reads), 0, buffers, "a read");
      case 1:
        if (i.writes.empty()) return "";
        return retarget(pick(i.writes), 0, buffers, "a write");
      case 2:
        if (i.reads.empty()) return "";
        erase(i.reads, below(i.reads.size()));
        return "drop a read";
      case 3:
        if (i.writes.empty()) return "";
        erase(i.writes, below(i.writes.size()));
        return "drop a write";
      case 4: {
        if (i.adds.empty()) return "";
        Add& a = pick(i.adds);
        const uint64_t kind = below(4);
        if (kind == 0) std::swap(a.into, a.from);
        if (kind == 1) erase(i.adds, below(i.adds.size()));
        if (kind == 2) return retarget(below(2) == 0 ? a.into : a.from, 0, buffers, "an addition");
        if (kind == 3) {
          if (i.adds.size() < 2) return "";
          std::swap(i.adds[0], i.adds[1]);
        }
        return "damage an addition";
      }
      case 5:
        return i.block < 0 ? "" : retarget(i.block, 0, 8, "the block");
      case 6:
        return i.segment < 0 ? "" : retarget(i.segment, 0, 3, "the segment");
      case 7:
        return i.lane < 0 ? "" : retarget(i.lane, 0, 4, "the lane");
      case 8:
        return i.micro < 0 ? "" : retarget(i.micro, 0, 3, "the micro-batch");
      case 9:
        return i.round < 0 ? "" : retarget(i.round, 0, 3, "the round");
      case 10:
        return i.peer < 0 ? "" : retarget(i.peer, 0, static_cast<int>(plan.programs.size()), "the peer");
      case 11:
        return i.group < 0 ? "" : retarget(i.group, -1, static_cast<int>(plan.groups.size()) + 1, "the group");
      case 12:
        return i.output < 0 ? "" : retarget(i.output, 0, 3, "the output");
      case 13:
        if (i.bytes == 0) return "";
        i.bytes = below(2) == 0 ? i.bytes / 2 : i.bytes + 256;
        return "resize what travels";
      case 14:
        i.id += static_cast<uint32_t>(1 + below(3));
        return "another id";
      default: {
        if (i.op == Op::kExchange) {
          i.exchange = static_cast<Exchange>(below(3));
          return "another exchange";
        }
        if (i.op == Op::kBackward && below(2) == 0) {
          i.part = static_cast<Part>((static_cast<int>(i.part) + 1 + static_cast<int>(below(2))) % 3);
          return "another part";
        }
        if (i.op != Op::kForward && i.op != Op::kBackward) return "";
        i.again = !i.again;
        return "again or not";
      }
    }
  }

  std::string damage_flow(const Program& program, Instruction& i) {
    const int buffers = static_cast<int>(program.buffers.size());
    std::vector<int*> all;
    for (auto* list : {&i.flow.in, &i.flow.out, &i.flow.grad_in, &i.flow.grad_out}) {
      for (int& b : *list) all.push_back(&b);
    }
    for (int* b : {&i.flow.saved, &i.flow.deferred, &i.flow.work}) {
      if (*b >= 0) all.push_back(b);
    }
    for (auto* list : {&i.flow.parameters, &i.flow.gradients}) {
      for (UnitBuffer& u : *list) all.insert(all.end(), {&u.buffer, &u.unit});
    }
    if (all.empty()) return "";
    if (i.flow.gradients.size() > 1 && below(6) == 0) {
      std::swap(i.flow.gradients[0], i.flow.gradients[1]);
      return "swap gradients";
    }
    if (!i.flow.in.empty() && below(10) == 0) {
      i.flow.in.pop_back();
      return "drop an input";
    }
    return retarget(*pick(all), -1, buffers + 1, "a buffer of the flow");
  }

  std::string damage_buffer(Program& program) {
    Buffer& b = pick(program.buffers);
    const std::string name = fmt::format("'{}' for the program", b.name);
    switch (below(8)) {
      case 0:
        b.bytes /= 2;
        return "halve " + name;
      case 1:
        b.bytes += 256;
        return "enlarge " + name;
      case 2:
        if (b.range.empty()) return "";
        b.range.begin += 64;
        return "shift the begin of " + name;
      case 3:
        if (b.range.empty()) return "";
        b.range = {b.range.begin + 64, b.range.end + 64};
        return "shift " + name;
      case 4:
        if (!b.window) return "";
        b.window = false;
        return "close the window of " + name;
      case 5:
        if (!b.window) return "";
        b.window_offset = static_cast<int64_t>(below(64)) * 4096;
        return "move " + name;
      case 6:
        return b.level < 0 ? "" : retarget(b.level, 0, 3, "the level of " + name);
      default:
        return b.unit < 0 ? "" : retarget(b.unit, 0, 8, "the unit of " + name);
    }
  }

  std::mt19937_64 random_;
};

struct Case {
  MeshModel model;
  MeshOptions options;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  const auto add = [&](MeshModel m, Mesh mesh, Batch batch, int zero, const char* schedule) -> MeshOptions& {
    MeshOptions o;
    o.mesh = mesh, o.batch = batch, o.zero = zero, o.schedule = schedule;
    list.push_back({m, o});
    return list.back().options;
  };
  add({3, 1, true}, {2, 1, 1, 1}, {3, 2, 1}, 0, "1f1b");
  add({3, 1, true}, {2, 1, 1, 2}, {4, 1, 1}, 1, "1f1b");
  add({4, 1, false}, {2, 1, 1, 2}, {2, 1, 1}, 2, "1f1b");
  add({4, 1, true}, {2, 1, 1, 2}, {4, 1, 1}, 3, "1f1b").owner = true;
  add({4, 1, false}, {2, 1, 1, 2}, {2, 2, 1}, 2, "1f1b").micro = true;
  add({4, 1, true}, {1, 1, 2, 1}, {2, 2, 1}, 0, "1f1b");
  add({4, 1, true}, {2, 1, 2, 2}, {2, 2, 1}, 3, "gpipe");
  add({4, 1, false}, {1, 1, 2, 1}, {3, 1, 1}, 0, "zero-bubble");
  add({4, 2, false}, {1, 2, 1, 1}, {2, 1, 1}, 0, "1f1b");
  add({4, 2, true}, {2, 2, 1, 2}, {2, 2, 1}, 1, "1f1b").overlap = false;
  add({4, 2, true}, {1, 2, 2, 1}, {2, 1, 1}, 0, "1f1b").recompute = Recompute::kFull;
  add({5, 1, true}, {1, 1, 2, 1}, {4, 1, 1}, 0, "zbv");
  add({6, 1, true}, {1, 1, 2, 1}, {5, 1, 1}, 0, "zbv").in_flight = 3;
  add({5, 1, false}, {4, 1, 1, 2}, {4, 1, 1}, 1, "1f1b");
  add({4, 1, true}, {2, 1, 1, 2}, {2, 1, 1}, 2, "1f1b").offload = true;
  add({4, 1, true}, {4, 1, 1, 2}, {4, 2, 1}, 1, "1f1b").hosts = 2;
  add({4, 1, true}, {4, 1, 1, 4}, {4, 1, 1}, 2, "1f1b").hosts = 2;
  add({4, 1, false}, {4, 1, 1, 1}, {8, 1, 1}, 0, "1f1b").hosts = 2;
  MeshOptions& both = add({4, 1, true}, {2, 1, 1, 1}, {2, 2, 1}, 0, "1f1b");
  both.offload = both.offload_parameters = true;
  return list;
}

}  // namespace

TEST(MeshMutation, EveryDamagedPlanIsRejectedOrGivesTheSameState) {
  // Another one every time; --gtest_random_seed=N repeats a run.
  const uint64_t given = GTEST_FLAG_GET(random_seed), seed = given != 0 ? given : 1 + std::random_device{}() % 99999;
  std::printf("seed %lu\n", seed);
  Mutator mutator(seed);
  int rejected = 0, equal = 0;
  for (const Case& c : cases()) {
    const ModelShape model = mesh_model(c.model);
    ASSERT_TRUE(mesh_faults(model, c.options).empty());
    const Plan original = plan_mesh(model, c.options);
    const std::string name = test::name_of(c.model, c.options);
    const auto faults = check_mesh(original, model, c.options);
    ASSERT_TRUE(faults.empty()) << name << ": " << faults[0];
    std::string problem;
    MeshRunner first(original, model, c.options, 0);
    ASSERT_EQ(first.run(2), "") << name;
    const auto expected = first.state(problem);
    ASSERT_EQ(problem, "") << name;
    for (int round = 0; round < 1200; ++round) {
      Plan mutant = original;
      const std::string what = mutator.damage(mutant);
      if (what.empty()) continue;
      if (!check_mesh(mutant, model, c.options).empty()) {
        ++rejected;
        continue;
      }
      ++equal;
      for (int k = 0; k < 3; ++k) {
        const std::string told = fmt::format("seed {}: {}: accepted: {}", seed, name, what);
        try {
          MeshRunner runner(mutant, model, c.options, mutator.below(1u << 30));
          ASSERT_EQ(runner.run(2), "") << told;
          ASSERT_TRUE(runner.state(problem) == expected && problem.empty()) << told << ": " << problem;
        } catch (const std::exception& e) {
          FAIL() << told << ": " << e.what();
        }
      }
    }
  }
  std::printf("%d rejected, %d accepted and equal\n", rejected, equal);
  EXPECT_GT(rejected, 5000);
  EXPECT_GT(equal, 0);  // the checker does not simply want the original back
}

}  // namespace tutti
