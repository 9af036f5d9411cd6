#include "state/state.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace tutti {
namespace {

struct Example {
  std::vector<float> a = std::vector<float>((size_t{1} << 18) + 5, 0.5f), b = {1, 2};
  State state{{{"p", "parameter", {(1 << 18) + 5}, a}, {"p", "m", {2}, b}}, {3, 96, ""}};
};

TEST(StateHash, IsTheSameForTheSameStateAndStableOverVersions) {
  EXPECT_EQ(state_hash(Example().state), state_hash(Example().state));
  State empty;
  EXPECT_EQ(state_hash(empty), "66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925")
      << "32 zero bytes: no entries, step 0, cursor 0, a schedule of no bytes";
}

TEST(StateHash, ChangesWithEveryPartOfTheState) {
  std::set<std::string> hashes = {state_hash(Example().state)};
  const std::function<void(Example&)> changes[] = {
      [](Example& e) { e.a[0] = -0.5f; },
      [](Example& e) { e.a.back() = 0.25f; },  // in the second range of 1 MiB
      [](Example& e) { e.b[1] = 3; },
      [](Example& e) { e.state.entries[0].name = "q"; },
      [](Example& e) { e.state.entries[1].slot = "v"; },
      [](Example& e) {
        e.state.entries[1].dims = {2, 1};
      },
      [](Example& e) { e.state.counters.step = 4; },
      [](Example& e) { e.state.counters.cursor = 97; },
      [](Example& e) { e.state.counters.schedule = "x"; },
      [](Example& e) { std::swap(e.state.entries[0], e.state.entries[1]); },
  };
  for (const auto& change : changes) {
    Example example;
    change(example);
    EXPECT_TRUE(hashes.insert(state_hash(example.state)).second);
  }
}

TEST(StateHash, TellsZeroFromMinusZero) {
  float zero[] = {0.0f}, minus[] = {-0.0f};
  State a{{{"p", "parameter", {1}, zero}}, {}}, b{{{"p", "parameter", {1}, minus}}, {}};
  EXPECT_NE(state_hash(a), state_hash(b));
}

}  // namespace
}  // namespace tutti
