// Every small damage to the plan of a mesh (mesh_program_damage.h, mesh_plan_damage.h) is either
// found by the checker, or changes nothing: then the mutant is run on hashes (mesh_runner.h), in
// several interleavings, and must end with the state of the plan it was made from.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>

#include "plan/check/prove.h"
#include "unit/plan/mesh_plan_damage.h"
#include "unit/plan/mesh_program_damage.h"
#include "unit/plan/mesh_runner.h"
#include "unit/plan/sample_meshes.h"

namespace tutti {

using test::Dice;
using test::mesh_model;
using test::MeshModel;
using test::MeshRunner;
using test::MeshValues;

namespace {

struct Case {
  MeshModel model;
  MeshOptions options;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  const auto add = [&](MeshModel m, Mesh mesh, Batch batch, int zero,
                       const char* schedule) -> MeshOptions& {
    MeshOptions o;
    o.mesh = mesh, o.batch = batch, o.zero = zero, o.schedule = schedule;
    o.bucket_floats = std::array<int64_t, 3>{0, 9000, 1 << 20}[list.size() % 3];
    list.push_back({m, o});
    return list.back().options;
  };
  const MeshModel consuming{4, 1, false, true, true};
  add({3, 1, true}, {2, 1, 1, 1}, {3, 2, 1}, 0, "1f1b");
  add({3, 1, true}, {2, 1, 1, 2}, {4, 1, 1}, 1, "1f1b");
  add({4, 1, false}, {2, 1, 1, 2}, {2, 1, 1}, 2, "1f1b");
  add({4, 1, true}, {2, 1, 1, 2}, {4, 1, 1}, 3, "1f1b").fold = FoldKind::kOwner;
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
  add({4, 1, true}, {2, 1, 1, 2}, {2, 1, 1}, 2, "1f1b").offload = Offload::kOptimizer;
  add({4, 1, true}, {4, 1, 1, 2}, {4, 2, 1}, 1, "1f1b").hosts = 2;
  add({4, 1, true}, {4, 1, 1, 4}, {4, 1, 1}, 2, "1f1b").hosts = 2;
  add({4, 1, false}, {4, 1, 1, 1}, {8, 1, 1}, 0, "1f1b").hosts = 2;
  MeshOptions& both = add({4, 1, true}, {2, 1, 1, 1}, {2, 2, 1}, 0, "1f1b");
  both.offload = Offload::kAll;
  // Data parallelism, whose sums are borrowed, returned, gathered or made by one.
  add(consuming, {3, 1, 1, 1}, {5, 1, 1}, 0, "1f1b");
  add(consuming, {2, 1, 1, 1}, {2, 2, 1}, 0, "1f1b").windows = false;
  add({4, 1, true}, {2, 1, 1, 1}, {2, 2, 1}, 0, "1f1b").device = true;
  add({4, 1, true}, {3, 1, 1, 1}, {3, 1, 1}, 0, "1f1b").fold = FoldKind::kRoot;
  add({4, 1, true}, {2, 1, 1, 1}, {4, 1, 1}, 0, "1f1b").fold = FoldKind::kOwner;
  add(consuming, {2, 1, 2, 1}, {2, 2, 1}, 0, "1f1b");
  return list;
}

/// How a mutant's runs end otherwise than the original's; empty: they do not.
std::string differs(const Plan& mutant, const ModelShape& model, const MeshValues& expected,
                    Dice& dice) {
  for (int k = 0; k < 3; ++k) {
    try {
      std::string problem;
      MeshRunner runner(mutant, model, dice.below(1u << 30));
      if (const std::string stuck = runner.run(2); !stuck.empty()) return stuck;
      if (runner.state(problem) != expected) return "another state";
      if (!problem.empty()) return problem;
    } catch (const std::exception& e) {
      return e.what();
    }
  }
  return "";
}

}  // namespace

TEST(MeshMutation, EveryDamagedPlanIsRejectedOrGivesTheSameState) {
  // Another one every time; --gtest_random_seed=N repeats a run.
  const uint64_t given = GTEST_FLAG_GET(random_seed),
                 seed = given != 0 ? given : 1 + std::random_device{}() % 99999;
  std::printf("seed %lu\n", seed);
  Dice dice(seed);
  test::ProgramDamage of_programs(dice);
  test::PlanDamage of_plan(dice);
  int rejected = 0, equal = 0;
  for (const Case& c : cases()) {
    const ModelShape model = mesh_model(c.model);
    ASSERT_TRUE(mesh_faults(model, c.options).empty());
    const Plan original = plan_mesh(model, c.options);
    const std::string name = test::name_of(c.model, c.options);
    const auto faults = prove(original, model);
    ASSERT_TRUE(faults.empty()) << name << ": " << faults[0];
    std::string problem;
    MeshRunner first(original, model, 0);
    ASSERT_EQ(first.run(2), "") << name;
    const MeshValues expected = first.state(problem);
    ASSERT_EQ(problem, "") << name;
    for (int round = 0; round < 1200; ++round) {
      Plan mutant = original;
      const std::string what =
          dice.below(4) == 0 ? of_plan.damage(mutant) : of_programs.damage(mutant);
      if (what.empty()) continue;
      if (!prove(mutant, model).empty()) {
        ++rejected;
        continue;
      }
      ++equal;
      const std::string wrong = differs(mutant, model, expected, dice);
      EXPECT_EQ(wrong, "") << fmt::format("seed {}: {}: accepted: {}", seed, name, what);
    }
  }
  std::printf("%d rejected, %d accepted and equal\n", rejected, equal);
  EXPECT_GT(rejected, 5000);
  EXPECT_GT(equal, 0);  // the checker does not simply want the original back
}

}  // namespace tutti
