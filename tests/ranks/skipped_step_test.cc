// float16's skipped steps, with a device on the host's memory whose commit finds chosen steps not
// finite: nothing but the loss scale changes, on every rank alike, and the optimizer does not count
// them.
#include <atomic>

#include "state/checkpoint.h"
#include "support/command.h"
#include "support/device_ranks.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

// Every record is the same, so every step has the same gradients: a run with a skipped step can be
// told from a shorter one by nothing but its counters.
constexpr const char* kJob = R"(
[model]
kind = "mlp"
hidden = [8]
activation = "tanh"
[data]
kind = "csv"
held_out = 0.0
columns = ["a: number", "b: number", "y: target"]
[train]
lanes = 3
micro_batches = 2
micro_batch_size = 2
optimizer = "adam"
schedule = "constant"
lr = 0.01
clip = 0.0
eval_batches = 0
steps = 20
)";

/// A bit for every step that is found not finite, whatever its values.
std::atomic<uint64_t> overflowing{0};

void commit(Stream stream, const double* votes, const VoteLayout& layout, const StepInputs* inputs,
            StepOutcome* outcome) {
  host_state_kernels().commit(stream, votes, layout, inputs, outcome);
  if ((overflowing.load() >> inputs->keys.step & 1) != 0) outcome->finite = 0;
}

const DeviceLibrary& overflowing_library() {
  static const DeviceLibrary library = [] {
    DeviceLibrary l = host_library();
    l.state.commit = commit;
    return l;
  }();
  return library;
}

using Values = std::vector<std::vector<float>>;

Values values_of(const State& state) {
  Values values;
  for (const StateEntry& entry : state.entries)
    values.emplace_back(entry.values.begin(), entry.values.end());
  return values;
}

struct Outcome {
  std::vector<StepReport> reports;
  std::vector<LossScale> scales;  ///< after every step
  std::vector<Values> values;     ///< before the first step, and after every one
  State state;                    ///< without its entries
  std::string hash, failure;
};

class SkippedStep : public testing::Test {
 protected:
  Job job(int ranks, const char* precision, double scale, std::vector<Setting> settings = {}) {
    settings.push_back({"data.path", path_});
    Job job = device_job(kJob, ranks, settings);
    job.numerics.precision = *value_named<Precision>(precision);
    job.numerics.loss_scale = scale;
    return job;
  }
  /// Up to `steps` steps in all; those of `overflows` are not finite.
  Outcome train(const Job& job, int64_t steps, uint64_t overflows,
                const std::string& checkpoint = "", const std::string& save_in = "") {
    overflowing = overflows;
    Outcome outcome;
    const LaunchResult result = on_device_ranks(
        job, checkpoint,
        [&](DeviceRank& rank) {
          Outcome mine;
          const auto values = [&] {
            rank.trainer.agreed_hash();  // which copies them into the host's memory
            return values_of(rank.trainer.units().state({}));
          };
          mine.values.push_back(values());
          while (rank.trainer.committed() < steps) {
            mine.reports.push_back(rank.trainer.step());
            mine.scales.push_back(rank.trainer.progress().scale);
            mine.values.push_back(values());
          }
          mine.hash = rank.trainer.agreed_hash();
          mine.state.counters = counters_of(job, rank.trainer.progress());
          const std::string saved =
              save_in.empty() ? ""
                              : rank.trainer.save({.folder = save_in, .job_toml = to_toml(job)});
          if (!rank.first()) return;
          saved_ = saved;
          outcome = std::move(mine);
        },
        overflowing_library());
    overflowing = 0;
    if (!result.ok()) outcome.failure = result.failures[0];
    return outcome;
  }

  TempFolder folder_;
  const std::string path_ = folder_.write(
      "rows.csv", "a,b,y\n" + [] {
        std::string rows;
        for (int i = 0; i < 12; ++i) rows += "0.75,-0.5,1.25\n";
        return rows;
      }());
  std::string saved_;
};

TEST_F(SkippedStep, AScaleAloneChangesNoBit) {
  const Outcome plain = train(job(1, "float32", 0), 5, 0);
  ASSERT_EQ(plain.failure, "");
  for (int ranks : {1, 2}) {
    const Outcome scaled = train(job(ranks, "float16", 4096), 5, 0);
    ASSERT_EQ(scaled.failure, "");
    EXPECT_EQ(scaled.values, plain.values) << ranks << " ranks: a scale by powers of two is exact";
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(scaled.reports[i].loss, plain.reports[i].loss);
      EXPECT_EQ(scaled.reports[i].gradient_norm, plain.reports[i].gradient_norm);
    }
  }
}

TEST_F(SkippedStep, LeavesEveryValueAndHalvesTheScaleOnEveryNumberOfRanks) {
  std::string hash;
  for (int ranks : {1, 2, 3}) {
    const Outcome run = train(job(ranks, "float16", 64), 5, 0b00100);
    ASSERT_EQ(run.failure, "");
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(run.reports[i].skipped, i == 2) << "step " << i + 1;
      EXPECT_EQ(run.reports[i].step, static_cast<int64_t>(i + 1)) << "a skipped step counts";
      EXPECT_EQ(run.values[i + 1] == run.values[i], i == 2) << "step " << i + 1;
    }
    EXPECT_EQ(run.scales,
              (std::vector<LossScale>{{64, 1, 0}, {64, 2, 0}, {32, 0, 1}, {32, 1, 1}, {32, 2, 1}}));
    if (hash.empty()) hash = run.hash;
    EXPECT_EQ(run.hash, hash) << ranks << " ranks";
  }
}

TEST_F(SkippedStep, IsNoStepOfTheOptimizers) {
  for (const char* optimizer : {"adam", "adamw", "lamb", "sgd"}) {
    const std::vector<Setting> settings{{"train.optimizer", optimizer}};
    const Outcome four = train(job(2, "float16", 64, settings), 4, 0);
    for (uint64_t skipped : {0, 1, 3}) {
      const Outcome five = train(job(2, "float16", 64, settings), 5, uint64_t{1} << skipped);
      ASSERT_EQ(four.failure + five.failure, "");
      EXPECT_EQ(five.values.back(), four.values.back())
          << optimizer << ", step " << skipped + 1 << " skipped";
      EXPECT_NE(five.hash, four.hash) << "the counters differ";
    }
  }
}

TEST_F(SkippedStep, IsPartOfTheState) {
  const Outcome run = train(job(1, "float16", 64), 3, 0b010);
  ASSERT_EQ(run.failure, "");
  EXPECT_NE(run.state.counters.schedule.find(to_text(LossScale{32, 1, 1})), std::string::npos)
      << run.state.counters.schedule;
  State other = run.state;
  other.counters.schedule = train(job(1, "float16", 64), 3, 0).state.counters.schedule;
  EXPECT_NE(state_hash(other), state_hash(run.state));
}

TEST_F(SkippedStep, TheScaleGrowsAfterGoodSteps) {
  Job growing = job(2, "float16", 64);
  growing.numerics.scale_growth = 2;
  const Outcome run = train(growing, 5, 0b00010);
  ASSERT_EQ(run.failure, "");
  EXPECT_EQ(run.scales,
            (std::vector<LossScale>{{64, 1, 0}, {32, 0, 1}, {32, 1, 1}, {64, 0, 1}, {64, 1, 1}}));
}

TEST_F(SkippedStep, AResumedRunGoesOnWithTheScaleThatItHad) {
  const Outcome straight = train(job(2, "float16", 64), 6, 0b010010);
  train(job(1, "float16", 64), 3, 0b000010, "", folder_ / "checkpoints");
  const Outcome resumed = train(job(3, "float16", 64), 6, 0b010000, saved_);
  ASSERT_EQ(straight.failure + resumed.failure, "");
  ASSERT_EQ(resumed.scales.size(), 3u);
  EXPECT_EQ(resumed.scales[0], (LossScale{32, 2, 1}));
  EXPECT_EQ(resumed.scales[2], straight.scales[5]);
  EXPECT_EQ(resumed.hash, straight.hash);
}

TEST_F(SkippedStep, ARunThatGoesOnInAnotherPrecisionStartsWithItsOwnScale) {
  train(job(1, "float16", 64), 3, 0b010, "", folder_ / "checkpoints");
  const Outcome plain = train(job(1, "float32", 0), 4, 0, saved_);
  ASSERT_EQ(plain.failure, "");
  EXPECT_EQ(plain.scales[0], (LossScale{1, 0, 1})) << "a step that was skipped stays skipped";
}

TEST_F(SkippedStep, OtherPrecisionsSkipNothing) {
  for (const char* precision : {"float32", "bfloat16"}) {
    const Outcome run = train(job(2, precision, 0), 4, 0b0100);
    EXPECT_NE(run.failure.find("step 3"), std::string::npos) << run.failure;
  }
}

TEST_F(SkippedStep, WithoutAScaleToLowerWhatIsNotFiniteIsTheUsualError) {
  // The first update leaves parameters that no loss survives.
  const auto bursting = [&](int ranks, const char* precision, double scale) {
    Job made = job(ranks, precision, scale, {{"train.optimizer", "sgd"}});
    made.train.lr = 1e38;
    return made;
  };
  for (int ranks : {1, 3}) {
    const Outcome at_once = train(bursting(ranks, "float32", 0), 20, 0);
    EXPECT_NE(at_once.failure.find("step 2, lane 0, micro-batch 0"), std::string::npos)
        << at_once.failure;
    const Outcome later = train(bursting(ranks, "float16", 4), 20, 0);
    EXPECT_NE(later.failure.find("step 4, lane 0, micro-batch 0"), std::string::npos)
        << "steps 2 and 3 lower the scale from 4 to 1: " << later.failure;
  }
}

}  // namespace
}  // namespace tutti
