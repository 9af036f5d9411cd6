// A run that is cut into parts on other ranks equals one that never stopped: with everything that
// remembers.
#include "support/small_data.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

// Batch statistics, a rate that falls on a plateau, evaluations that are counted, augmentation by
// position, moments.
constexpr const char* kJob = R"(
[model]
kind = "cnn"
image = [1, 8, 8]
channels = [4]
classes = 4
norm = "batch"
init = "he-normal"
[data]
kind = "numpy"
scale = "standardise"
held_out = 0.2
[augment]
crop = 1
flip = 0.5
noise = 0.1
mixup = 0.3
[train]
lanes = 5
micro_batch_size = 3
steps = 30
lr = 5e-3
schedule = "plateau"
factor = 0.5
patience = 1
min_change = 0.2
early_stop = 4
keep_best = true
eval_every = 2
eval_batches = 1
)";

class ResumeTrainer : public testing::Test {
 protected:
  std::string train(const std::string& name, const Arguments& arguments) {
    Command command(Arguments{"train", job_, "--out", folder_ / name} + set(data_) + arguments);
    EXPECT_EQ(command.wait(), 0) << command.err();
    return command.hash();
  }
  std::string resume(const Arguments& arguments) {
    Command command(Arguments{"train", "--resume", folder_ / "run"} + arguments);
    EXPECT_EQ(command.wait(), 0) << command.err();
    return command.hash();
  }
  nlohmann::json last(const std::string& run, const std::string& event) {
    nlohmann::json found;
    for (const std::string& line : lines_in(folder_ / run + "/events.jsonl"))
      if (auto record = nlohmann::json::parse(line); record.at("event") == event) found = record;
    return found;
  }
  TempFolder folder_;
  const std::string job_ = folder_.write("job.toml", kJob);
  const Arguments data_ = write_images(folder_, "images", 60, 8, 4);
};

TEST_F(ResumeTrainer, InPartsOnOtherRanksStopsEarlyAtTheSameStepInTheSameState) {
  const std::string straight = train("straight", {"--ranks", "1"});
  const auto stop = last("straight", "early_stop");
  ASSERT_FALSE(stop.is_null()) << "this job must stop early";
  ASSERT_GT(stop.at("step").get<int64_t>(), 8);
  const auto rates = metric_of(folder_ / "straight", "step", "lr");
  ASSERT_LT(rates.back(), rates.front()) << "this job must reach a plateau";

  // between two evaluations
  train("run", {"--ranks", "3", "--steps", "3"});
  resume({"--ranks", "2", "--steps", "4", "--set", "layout.workers=thread"});  // at one of them
  resume({"--ranks", "1", "--steps", "7", "--set", "layout.partition=round-robin"});
  EXPECT_EQ(resume({"--ranks", "2", "--set", "layout.transport=tcp"}), straight);
  for (const char* field : {"loss", "gradient_norm", "lr"})
    EXPECT_EQ(metric_of(folder_ / "run", "step", field),
              metric_of(folder_ / "straight", "step", field))
        << field;
  for (const char* field : {"step", "best", "best_step"})
    EXPECT_EQ(last("run", "early_stop").at(field), stop.at(field)) << field;
  const auto best = [&](const std::string& run) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / run + "/best"))
      if (entry.path().filename().string().starts_with("step-"))
        names.push_back(entry.path().filename());
    return names;
  };
  EXPECT_EQ(best("run"), best("straight"));
  EXPECT_EQ(best("run").size(), 1u);

  const std::string metrics = read_file(folder_ / "run/metrics.jsonl"),
                    events = read_file(folder_ / "run/events.jsonl");
  EXPECT_EQ(resume({"--ranks", "3"}), straight) << "one that stopped early has nothing left to do";
  EXPECT_EQ(read_file(folder_ / "run/metrics.jsonl"), metrics);
  EXPECT_EQ(read_file(folder_ / "run/events.jsonl"), events);
}

TEST_F(ResumeTrainer, RepeatsWhatCameAfterTheLastCheckpoint) {
  const Arguments saved = set({"train.checkpoint_every=3", "layout.save_beside=false"});
  const std::string straight = train("straight", Arguments{"--ranks", "2", "--steps", "8"} + saved);
  train("run", Arguments{"--ranks", "1", "--steps", "8"} + saved);
  // as if it had died before its end
  std::filesystem::remove_all(folder_ / "run/checkpoints/step-00000008");
  EXPECT_EQ(resume({"--ranks", "3", "--steps", "8"}), straight);
  EXPECT_EQ(metric_of(folder_ / "run", "step", "loss"),
            metric_of(folder_ / "straight", "step", "loss"));
}

}  // namespace
}  // namespace tutti
