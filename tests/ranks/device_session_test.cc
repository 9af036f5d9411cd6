// A run on a device, on the host's memory: checkpoints are written alongside its steps, and what
// goes wrong on other threads or a step ahead is told, by the step that it belongs to.
#include <ATen/TensorOperators.h>

#include <filesystem>
#include <set>

#include "model/adapt/adaptor.h"
#include "state/checkpoint.h"
#include "support/command.h"
#include "support/device_ranks.h"
#include "train/run_folder.h"
#include "train/session.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

constexpr const char* kJob = R"(
[model]
kind = "mlp"
inputs = 6
hidden = [9, 7]
classes = 3
norm = "batch"
init = "he-normal"
[data]
kind = "points"
[train]
lanes = 5
micro_batches = 2
micro_batch_size = 3
steps = 5
checkpoint_every = 1
eval_batches = 1
)";
constexpr const char* kEnough = "all that this test looks at is there";

/// Hands events to a function.
class Listener final : public EventSink {
 public:
  explicit Listener(std::function<void(const nlohmann::json&)> heard) : heard_(std::move(heard)) {}
  void write(const nlohmann::json& event) override { heard_(event); }

 private:
  std::function<void(const nlohmann::json&)> heard_;
};

class DeviceSession : public testing::Test {
 protected:
  /// The whole run in folder `name`, as far as `heard` lets it.
  LaunchResult run(const Job& job, const std::string& name,
                   const std::function<void(const nlohmann::json&)>& heard,
                   const std::function<void(const RunFolder&)>& before = {},
                   const MakeModel& make = make_model) {
    RunOptions options;
    options.job = job;
    options.make_model = make;
    options.sinks = [&](const std::string&) {
      std::vector<std::unique_ptr<EventSink>> sinks;
      sinks.push_back(std::make_unique<Listener>(heard));
      return sinks;
    };
    const LockedRun made = create_run(folder_ / name, job);
    const RunFolder& folder = made.folder;
    if (before) before(folder);
    return on_device_ranks(
        job, "",
        [&](DeviceRank& rank) {
          Session(options, folder, rank.model, rank.trainer, rank.context.clock.now(), rank.context)
              .run();
        },
        host_library(), make);
  }
  TempFolder folder_;
};

/// Of a run of so many steps, or one that starts from a checkpoint and takes none.
std::string hash_of(const Job& job, const std::string& checkpoint, int64_t steps) {
  std::string hash;
  expect_ok(on_device_ranks(job, checkpoint, [&](DeviceRank& rank) {
    for (int64_t i = 0; i < steps; ++i) rank.trainer.step();
    const std::string agreed = rank.trainer.agreed_hash();
    if (rank.first()) hash = agreed;
  }));
  return hash;
}

TEST_F(DeviceSession, EveryCheckpointWrittenBesideTheStepsIsThatOfARunThatStopsThere) {
  for (int ranks : {1, 2}) {
    const Job job = device_job(kJob, ranks);
    const std::string name = "run" + std::to_string(ranks);
    std::vector<int64_t> told;
    // What comes after the last checkpoint is a measurement of the device that takes the host too
    // long.
    const LaunchResult result = run(job, name, [&](const nlohmann::json& event) {
      if (event.at("event") != "saved") return;
      told.push_back(event.at("step"));
      if (told.back() == 5) throw Error(kEnough);
    });
    ASSERT_FALSE(result.ok());
    EXPECT_NE(result.failures[0].find(kEnough), std::string::npos) << result.failures[0];
    // One that is due while another is being written comes later; the last is that of the end.
    EXPECT_EQ(told.front(), 1);
    EXPECT_EQ(told.back(), 5);
    EXPECT_TRUE(std::is_sorted(told.begin(), told.end(), std::less_equal<>()));
    for (const int64_t step : told) {
      const std::string checkpoint = folder_ / name + fmt::format("/checkpoints/step-{:08}", step);
      ASSERT_TRUE(std::filesystem::exists(checkpoint)) << checkpoint;
      EXPECT_EQ(hash_of(job, checkpoint, 0), hash_of(job, "", step))
          << ranks << " ranks, step " << step;
    }
    EXPECT_EQ(latest_checkpoint(folder_ / name + "/checkpoints"),
              folder_ / name + "/checkpoints/step-00000005");
    EXPECT_FALSE(std::filesystem::exists(folder_ / name + "/checkpoints/.writing"));
  }
}

/// A file where the folder of checkpoints should be: nothing can be written there, by root neither.
void block(const RunFolder& folder) {
  std::filesystem::remove_all(folder.checkpoints());
  write_file_atomic(folder.checkpoints(), "in the way");
}

TEST_F(DeviceSession, ACheckpointThatCannotBeWrittenIsAnErrorWheneverItIsDue) {
  for (const char* every : {"1", "2", "3", "5", "0"})
    for (int ranks : {1, 2}) {
      const std::string name = fmt::format("run {} {}", every, ranks);
      const Job job = device_job(kJob, ranks, {{"train.checkpoint_every", every}});
      bool saved = false;
      const LaunchResult result = run(
          job, name, [&](const nlohmann::json& event) { saved |= event.at("event") == "saved"; },
          block);
      ASSERT_FALSE(result.ok()) << name;
      EXPECT_NE(result.failures[0].find(folder_ / name + "/checkpoints"), std::string::npos)
          << result.failures[0];
      EXPECT_FALSE(saved) << name;
    }
}

/// A block of the user's own, which does not say that it can be captured.
Model own_model(const Job& job) {
  Model model = make_model(job);
  Border x{"features", {job.train.micro_batch_size, job.model.inputs}};
  model.blocks.insert(
      model.blocks.begin(),
      adapt("own", {}, [](Tensors, Tensors in) { return std::vector{in[0] * 2}; }, {x}, {x}));
  return model;
}

TEST_F(DeviceSession, SaysWhyStepsAreNotCaptured) {
  for (const bool own : {false, true}) {
    std::string notice;
    const LaunchResult result = run(
        device_job(kJob, 1), own ? "own" : "built-in",
        [&](const nlohmann::json& event) {
          if (event.at("event") == "notice") notice = event.at("text");
          if (event.at("event") == "step") throw Error(kEnough);
        },
        {}, own ? own_model : make_model);
    ASSERT_FALSE(result.ok());
    EXPECT_NE(result.failures[0].find(kEnough), std::string::npos) << result.failures[0];
    EXPECT_EQ(notice, own ? "steps are issued one by one, not captured: own/own does not say that "
                            "it can be captured"
                          : "");
  }
}

TEST_F(DeviceSession, ADiskThatFailsLaterLeavesTheCheckpointsBeforeIt) {
  const Job job = device_job(kJob, 1, {{"train.steps", "200"}});
  const std::string checkpoints = folder_ / "run" + "/checkpoints";
  std::vector<int64_t> told;
  const LaunchResult result = run(job, "run", [&](const nlohmann::json& event) {
    if (event.at("event") != "saved") return;
    told.push_back(event.at("step"));
    if (told.size() != 2) return;
    std::filesystem::rename(checkpoints, checkpoints + "-then");
    write_file_atomic(checkpoints, "in the way");
  });
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.failures[0].find(checkpoints), std::string::npos) << result.failures[0];
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(hash_of(job, latest_checkpoint(checkpoints + "-then"), 0),
            hash_of(job, "", told.back()));
}

/// One rank, whose steps have ten micro-batches. On the host's memory they are checked again when
/// they are used: only what was not seen before counts.
LaunchResult failing_at(const Job& job, int micro_batch, int64_t& taken) {
  std::set<std::vector<float>> seen;
  return on_device_ranks(
      job, "",
      [&](DeviceRank& rank) {
        for (int i = 0; i < 5; ++i) {
          rank.trainer.step();
          taken = rank.trainer.committed();
        }
      },
      host_library(),
      [&](const Job& j) {
        Model model = make_model(j);
        model.check = [&seen, micro_batch](Tensors data) {
          const auto* values = data[0].const_data_ptr<float>();
          const bool fresh = seen.emplace(values, values + data[0].numel()).second;
          if (fresh && static_cast<int>(seen.size()) == micro_batch + 1)
            throw Error("this record is of no use");
        };
        return model;
      });
}

TEST(DeviceInput, AFaultIsToldByTheStepThatNeedsTheInputNotByTheOneBefore) {
  for (bool prefetch : {true, false})
    for (int fault : {0, 9, 10, 25, 49}) {
      Job job = device_job(kJob, 1);
      job.layout.prefetch = prefetch;
      int64_t taken = 0;
      const LaunchResult result = failing_at(job, fault, taken);
      ASSERT_FALSE(result.ok());
      EXPECT_NE(result.failures[0].find("this record is of no use"), std::string::npos)
          << result.failures[0];
      EXPECT_EQ(taken, fault / 10) << "micro-batch " << fault << ", prefetch " << prefetch;
    }
}

TEST(DeviceInput, AFaultOfAStepThatNeverComesIsNone) {
  Job job = device_job(kJob, 1);
  job.layout.prefetch = true;
  int64_t taken = 0;
  expect_ok(failing_at(job, 50, taken));
  EXPECT_EQ(taken, 5);
}

TEST(DeviceInput, TheOrderIsThatOfTheStepsTakenWithPrefetchAndWithout) {
  for (int ranks : {1, 2}) {
    std::vector<uint64_t> orders[2];
    for (bool prefetch : {false, true}) {
      Job job = device_job(kJob, ranks);
      job.layout.prefetch = prefetch;
      expect_ok(on_device_ranks(job, "", [&](DeviceRank& rank) {
        for (int i = 0; i < 4; ++i) {
          rank.trainer.step();
          const uint64_t order = rank.trainer.order_digest();
          if (rank.first()) orders[prefetch ? 1 : 0].push_back(order);
        }
      }));
    }
    EXPECT_EQ(orders[0], orders[1]) << ranks << " ranks";
    EXPECT_NE(orders[0][0], orders[0][3]);
  }
}

}  // namespace
}  // namespace tutti
