// A job of several ranks is a function of its seed under the test scheduler, with faults and
// without; and without faults its result is a function of the job alone.
#include <set>

#include "sim_job.h"

namespace tutti::test {

namespace {

using namespace std::chrono_literals;

std::string first_difference(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] != b[i]) return fmt::format("line {}: '{}' and '{}'", i, a[i], b[i]);
  }
  return fmt::format("{} and {} lines", a.size(), b.size());
}

bool has_line_with(const std::vector<std::string>& log, const std::string& text) {
  return std::any_of(log.begin(), log.end(),
                     [&](const auto& line) { return line.find(text) != std::string::npos; });
}

SimOutcome expect_exact_replay(const SimJob& job) {
  const SimOutcome first = run_job(job), second = run_job(job);
  EXPECT_TRUE(first == second) << "seed " << job.seed << ": "
                               << first_difference(first.log, second.log);
  return first;
}

const std::string& one_rank_state() {
  static const std::string state = run_job({.ranks = 1, .overlap = false}).states[0];
  return state;
}

void expect_state_of_one_rank(const SimJob& job) {
  const SimOutcome outcome = run_job(job);
  for (int r = 0; r < job.ranks; ++r) {
    EXPECT_EQ(outcome.errors[r], "");
    EXPECT_EQ(outcome.states[r], one_rank_state())
        << "rank " << r << " of " << job.ranks << ", seed " << job.seed
        << (job.overlap ? ", overlap" : "") << (job.windows ? ", windows" : "");
  }
  EXPECT_EQ(outcome.missed_notifies, 0u) << "seed " << job.seed;
}

/// A late message, a copy and one of another epoch: nothing that a job may notice.
SimJob troubled_job(uint64_t seed) {
  SimJob job{.ranks = 4, .lanes = 5, .seed = seed};
  job.faults = {{.kind = Fault::Kind::kDelay, .from = 0, .to = 2, .number = 3, .delay = 900us},
                {.kind = Fault::Kind::kDuplicate, .from = 2, .to = 0, .number = 1},
                {.kind = Fault::Kind::kForeignEpoch, .from = 3, .to = 0, .number = 2}};
  return job;
}

/// The same, and rank 1 cut off half-way.
SimJob faulty_job(uint64_t seed) {
  SimJob job = troubled_job(seed);
  job.cut_at = Time(run_job(job).end.time_since_epoch() / 2);
  job.cut_rank = 1;
  return job;
}

}  // namespace

TEST(Replay, AFaultyJobReplaysItsExactEventsFromTheSeed) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const SimOutcome outcome = expect_exact_replay(faulty_job(seed));
    // The faults did strike.
    for (std::string event :
         {"came twice", "is of epoch 0: dropped", "connection lost", "step 1"}) {
      EXPECT_TRUE(has_line_with(outcome.log, event)) << event << ", seed " << seed;
    }
  }
}

TEST(Replay, AFaultFreeJobReplaysItsExactEventsFromTheSeed) {
  for (bool windows : {false, true}) expect_exact_replay({.windows = windows, .seed = 17});
}

TEST(Replay, AnotherSeedGivesOtherEvents) {
  std::set<std::vector<std::string>> logs;
  for (uint64_t seed = 0; seed < 5; ++seed) logs.insert(run_job(faulty_job(seed)).log);
  EXPECT_EQ(logs.size(), 5u);
}

TEST(Replay, ACutRankEndsTheJobOnEveryRankAtOnce) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const SimJob job = faulty_job(seed);
    const SimOutcome outcome = run_job(job);
    bool named = false;
    for (int r = 0; r < job.ranks; ++r) {
      EXPECT_NE(outcome.errors[r], "") << "rank " << r << " went on, seed " << seed;
      named |= outcome.errors[r].find("connection lost") != std::string::npos;
    }
    EXPECT_TRUE(named);
    EXPECT_LT(outcome.end, job.cut_at + 10ms) << "seed " << seed;  // not the time-out of 30 s
  }
}

TEST(Replay, ALostMessageEndsTheJobAtTheTimeOutNamingThePeer) {
  SimJob job{.ranks = 3, .seed = 4};
  job.faults = {{.kind = Fault::Kind::kDrop, .from = 2, .to = 0, .number = 0}};
  const SimOutcome outcome = run_job(job);
  EXPECT_NE(outcome.errors[0].find("with rank 2: timed out (waited 29.99"), std::string::npos)
      << outcome.errors[0];
  EXPECT_GE(outcome.end, Time(30s));
  EXPECT_LT(outcome.end, Time(31s));
}

TEST(Replay, LateDoubledAndForeignMessagesDoNotChangeTheResult) {
  for (uint64_t seed = 0; seed < 5; ++seed) expect_state_of_one_rank(troubled_job(seed));
}

TEST(Replay, WithoutFaultsEverySeedGivesTheBitsOfOneRank) {
  for (uint64_t seed = 0; seed < 40; ++seed)
    expect_state_of_one_rank({.windows = seed % 2 == 1, .seed = seed});
}

TEST(Replay, EveryLayoutGivesTheBitsOfOneRank) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (bool overlap : {false, true}) {
      for (bool windows : {false, true}) {
        for (bool root : {false, true}) {
          expect_state_of_one_rank(
              {.ranks = ranks, .overlap = overlap, .windows = windows, .root = root, .seed = 100});
        }
      }
    }
  }
}

TEST(Replay, AnotherJobGivesOtherBits) {
  EXPECT_NE(run_job({.ranks = 1, .steps = 4}).states[0], one_rank_state());
  EXPECT_NE(run_job({.ranks = 1, .lanes = 2, .micro_batches = 5}).states[0], one_rank_state());
}

}  // namespace tutti::test
