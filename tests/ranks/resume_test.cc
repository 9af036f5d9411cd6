// Going on from a checkpoint: the same as never having stopped, on any number of ranks; and what is
// refused.
#include <fmt/format.h>

#include <map>
#include <set>

#include "config/job.h"
#include "support/command.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

constexpr const char* kGpt = R"(
[model]
kind = "gpt"
layers = 1
width = 64
heads = 2
context = 16
tied = true
dropout = 0.1
[data]
kind = "walk"
[train]
lanes = 5
micro_batch_size = 2
steps = 12
lr = 1e-2
warmup = 4
eval_every = 4
eval_batches = 1
)";

class Resume : public testing::Test {
 protected:
  /// Trains the job from its start.
  std::string train(const std::string& name, const Arguments& arguments) {
    Command command(Arguments{"train", job_, "--out", folder_ / name} + arguments);
    EXPECT_EQ(command.wait(), 0) << command.err();
    return command.hash();
  }
  std::string resume(const Arguments& arguments) {
    Command command(Arguments{"train", "--resume", run_} + arguments);
    EXPECT_EQ(command.wait(), 0) << command.err();
    return command.hash();
  }
  /// What a --resume that must fail with `code` says.
  std::string refused(int code, const std::string& run, const Arguments& arguments = {}) {
    Command command(Arguments{"train", "--resume", run, "--ranks", "2"} + arguments);
    EXPECT_EQ(command.wait(), code) << command.out();
    EXPECT_TRUE(command.processes().empty());
    return command.err();
  }

  TempFolder folder_;
  const std::string job_ = folder_.write("job.toml", kGpt), run_ = folder_ / "run";
};

TEST_F(Resume, EqualsNeverStoppingOnAnyNumberOfRanks) {
  const std::string straight = train("straight", {"--ranks", "2"});
  train("run", {"--ranks", "3", "--steps", "5"});
  const std::string middle = resume({"--ranks", "1", "--steps", "7"});
  EXPECT_EQ(middle, train("seven", {"--ranks", "2", "--steps", "7"}));
  resume({"--ranks", "4", "--steps", "9", "--set", "layout.transport=tcp"});
  EXPECT_EQ(resume({"--ranks", "2", "--set", "layout.workers=thread"}), straight);
  for (const char* field : {"loss", "gradient_norm", "lr"})
    EXPECT_EQ(metric_of(run_, "step", field), metric_of(folder_ / "straight", "step", field));
  EXPECT_EQ(metric_of(run_, "eval", "held_out_loss").back(),
            metric_of(folder_ / "straight", "eval", "held_out_loss").back());
}

TEST_F(Resume, RepeatsWhatCameAfterTheLastCheckpoint) {
  const std::string straight = train("straight", {"--ranks", "1"});
  train("run", {"--ranks", "2", "--set", "train.checkpoint_every=4"});
  // as if it had died before its end
  std::filesystem::remove_all(run_ + "/checkpoints/step-00000012");
  EXPECT_EQ(resume({"--ranks", "3"}), straight);
  EXPECT_EQ(metric_of(run_, "step", "loss"), metric_of(folder_ / "straight", "step", "loss"));
  EXPECT_EQ(metric_of(run_, "eval", "held_out_loss"),
            metric_of(folder_ / "straight", "eval", "held_out_loss"));
}

TEST_F(Resume, OnFewerRanksIsTracedWithoutThoseOfTheFirstStart) {
  train("run", {"--ranks", "3", "--steps", "3"});
  EXPECT_TRUE(std::filesystem::exists(run_ + "/trace/rank-2.jsonl"));
  resume({"--ranks", "2", "--steps", "5"});
  Command command({"trace", run_});
  ASSERT_EQ(command.wait(), 0) << command.err();
  std::set<int> ranks, steps;
  const auto trace = nlohmann::json::parse(read_file(run_ + "/trace.json"));
  for (const auto& event : trace["traceEvents"]) {
    ranks.insert(event["pid"].get<int>());
    if (event["ph"] == "X") steps.insert(event["args"]["step"].get<int>());
  }
  EXPECT_EQ(ranks, (std::set<int>{0, 1}));
  EXPECT_EQ(steps, (std::set<int>{4, 5})) << "as in metrics.jsonl";
}

/// Every file of a folder: its bytes and when it was written.
auto contents(const std::string& folder) {
  std::map<std::string, std::pair<std::string, std::filesystem::file_time_type>> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    files[entry.path()] = {entry.is_regular_file() ? read_file(entry.path()) : "",
                           entry.last_write_time()};
  return files;
}

TEST_F(Resume, OfARunAtItsLastStepLeavesEverythingAsItIs) {
  const std::string hash = train("run", {"--ranks", "2"});
  const auto before = contents(run_);
  for (const Arguments& arguments : {Arguments{}, {"--ranks", "3"}, {"--steps", "5"}}) {
    Command command(Arguments{"train", "--resume", run_} + arguments);
    EXPECT_EQ(command.wait(), 0) << command.err();
    EXPECT_EQ(command.hash(), hash);
    EXPECT_TRUE(command.says("it is at step 12, its last: there is nothing left to do"))
        << command.out();
    EXPECT_TRUE(contents(run_) == before);
  }
}

TEST_F(Resume, OfARunThatDiedBeforeItsEndAtItsLastStepEndsIt) {
  const std::string hash = train("run", {"--ranks", "2"});
  const std::string trace = read_file(run_ + "/trace/rank-0.jsonl");
  auto events = lines_in(run_ + "/events.jsonl");
  events.pop_back();
  folder_.write("run/events.jsonl", events.front() + "\n" + events.back() + "\n");
  EXPECT_EQ(resume({"--ranks", "1"}), hash);
  EXPECT_EQ(nlohmann::json::parse(lines_in(run_ + "/events.jsonl").back()).at("event"), "end");
  EXPECT_EQ(read_file(run_ + "/trace/rank-0.jsonl"), trace);
}

TEST_F(Resume, PastTheJobsStepsKeepsTheLastLearningRate) {
  const std::string straight = train("straight", {"--ranks", "2", "--steps", "15"});
  train("run", {"--ranks", "3"});
  EXPECT_EQ(resume({"--ranks", "1", "--steps", "15"}), straight);
  const auto lr = metric_of(run_, "step", "lr");
  EXPECT_EQ(lr.size(), 15u);
  EXPECT_EQ(lr[12], lr[14]);
}

TEST_F(Resume, WithAnotherJobIsRefusedNamingEveryKey) {
  train("run", {"--steps", "1"});
  const std::string said =
      refused(2, run_, set({"train.lr=0.5", "model.layers=2", "layout.overlap=false"}));
  EXPECT_NE(
      said.find(
          "train.lr is 0.01, not 0.5; only [layout], the device and the precision may change"),
      std::string::npos)
      << said;
  EXPECT_NE(said.find("model.layers is 1, not 2"), std::string::npos) << said;
  EXPECT_EQ(said.find("overlap"), std::string::npos) << said;
}

TEST_F(Resume, OfAnEditedJobIsRefusedNamingEveryKeyAndItsLayoutIsFree) {
  train("run", {"--steps", "1"});
  const std::string file = run_ + "/job.toml", whole = read_file(file);
  const auto edited = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
    write_file_atomic(file, text);
  };
  edited("lr = 0.01", "lr = 0.5");
  const std::string said = refused(2, run_);
  EXPECT_NE(said.find("train.lr is 0.01, not 0.5 as " + file + " says"), std::string::npos) << said;
  EXPECT_NE(said.find("start a new run with `tutti train " + file + "`"), std::string::npos)
      << said;
  EXPECT_EQ(metric_of(run_, "step", "loss").size(), 1u);
  edited("overlap = true", "overlap = false");
  const std::string straight = train("straight", {"--ranks", "1", "--steps", "2"});
  EXPECT_EQ(resume({"--steps", "2"}), straight);
  // One that is missing is restored, one that is damaged is not overwritten.
  std::filesystem::remove(file);
  EXPECT_EQ(resume({"--steps", "3"}), train("longer", {"--ranks", "1", "--steps", "3"}));
  EXPECT_EQ(job_differences(load_job(file, {}), parse_job(whole, file, {})),
            std::vector<std::string>{});
  write_file_atomic(file, whole.substr(0, whole.find("seed =") + 6));
  EXPECT_NE(refused(2, run_).find(file + ":"), std::string::npos);
  EXPECT_TRUE(read_file(file).ends_with("seed ="));
}

// Before results were the same on every processor, the code path was a key of the job.
TEST_F(Resume, OfARunThatNamedItsInstructionsAmongItsNumericsSaysThatTheyAreLayout) {
  train("run", {"--steps", "1"});
  const std::string file = run_ + "/job.toml";
  std::string text = read_file(file);
  const size_t now = text.find("isa = "), line_end = text.find('\n', now);
  ASSERT_NE(line_end, std::string::npos) << text;
  text.erase(now, line_end + 1 - now);
  const std::string section = "[numerics]\n";
  ASSERT_NE(text.find(section), std::string::npos) << text;
  text.insert(text.find(section) + section.size(), "isa = \"portable\"\n");
  write_file_atomic(file, text);
  Command command({"train", "--resume", run_, "--steps", "2"});
  EXPECT_EQ(command.wait(), 0) << command.err();
  EXPECT_TRUE(command.says("numerics.isa is layout.isa now: it changes the speed, not the result"))
      << command.out() << command.err();
  EXPECT_EQ(command.hash(), train("straight", {"--ranks", "1", "--steps", "2"}));
}

TEST_F(Resume, WithAnEmptyNameOrAnotherFolderIsRefused) {
  for (const Arguments& words : std::vector<Arguments>{{"--resume", ""}, {job_, "--out", ""}}) {
    Command command(Arguments{"train"} + words);
    EXPECT_EQ(command.wait(), 2) << testing::PrintToString(words) << command.out();
    EXPECT_TRUE(command.says("it is empty")) << testing::PrintToString(words) << command.err();
  }
  Command nameless({"train", ""});
  EXPECT_EQ(nameless.wait(), 2);
  EXPECT_TRUE(nameless.says("the job's name is empty")) << nameless.err();
  train("run", {"--steps", "1"});
  const std::string other = folder_ / "other";
  EXPECT_NE(refused(2, run_, {"--out", other}).find("--resume " + run_ + " --out " + other + ": "),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(other));
}

TEST_F(Resume, OfWhatIsNoRunIsRefused) {
  EXPECT_NE(refused(1, folder_ / "nothing").find("nothing: no such run"), std::string::npos);
  std::filesystem::create_directory(folder_ / "empty");
  EXPECT_NE(refused(1, folder_ / "empty").find("empty: not a run (it has no job.toml)"),
            std::string::npos);
  train("run", {"--steps", "1"});
  std::filesystem::remove_all(run_ + "/checkpoints");
  EXPECT_NE(refused(1, run_).find("run: it has no checkpoint to go on from"), std::string::npos);
}

TEST_F(Resume, OfARunThatIsStillTrainingIsRefused) {
  Command first(Arguments{"train"} + kEndlessMlp + Arguments{"--ranks", "1", "--out", run_} +
                set({"train.checkpoint_every=1"}));
  ASSERT_TRUE(reaches(run_, 3)) << first.err();
  EXPECT_NE(refused(1, run_).find("another process is training in it"), std::string::npos);
}

TEST_F(Resume, IntoAFolderWithARunIsRefusedAndLeavesItAlone) {
  train("run", {"--steps", "1"});
  const std::string metrics = read_file(run_ + "/metrics.jsonl");
  Command again({"train", job_, "--out", run_});
  EXPECT_EQ(again.wait(), 1);
  EXPECT_TRUE(
      again.says("a run is in it already; choose another folder, or go on with --resume " + run_));
  EXPECT_EQ(read_file(run_ + "/metrics.jsonl"), metrics);
}

class DamagedCheckpoint : public Resume {
 protected:
  void SetUp() override {
    train("run", {"--ranks", "2", "--steps", "6", "--set", "train.checkpoint_every=3"});
  }
  /// Refuses to go on, naming the file and the fault, and leaves the run as it was.
  void expect_refused(const std::string& file, const std::string& fault) {
    const std::string metrics = read_file(run_ + "/metrics.jsonl");
    const std::string said = refused(1, run_);
    EXPECT_NE(said.find(file), std::string::npos) << said;
    EXPECT_NE(said.find(fault), std::string::npos) << said;
    EXPECT_EQ(said.find("tutti: "), said.rfind("tutti: ")) << said;  // the fault is said once
    EXPECT_EQ(read_file(run_ + "/metrics.jsonl"), metrics);
  }
  const std::string checkpoint_ = run_ + "/checkpoints/step-00000006";
  const std::string state_ = checkpoint_ + "/parameters.safetensors",
                    manifest_ = checkpoint_ + "/manifest.json";
};

TEST_F(DamagedCheckpoint, WithAFlippedByteIsRefused) {
  std::fstream file(state_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1000, std::ios::end);
  const char flipped = static_cast<char>(file.peek() ^ 1);
  file.seekp(-1000, std::ios::end);
  file.put(flipped);
  file.close();
  expect_refused(state_, "are not those that the manifest was written for");
}

TEST_F(DamagedCheckpoint, ThatIsTruncatedIsRefused) {
  std::filesystem::resize_file(state_, std::filesystem::file_size(state_) - 7);
  expect_refused(state_, "truncated");
}

TEST_F(DamagedCheckpoint, WithoutItsStateIsRefused) {
  std::filesystem::remove(state_);
  expect_refused(state_, "No such file");
}

TEST_F(DamagedCheckpoint, WithoutItsManifestIsRefusedAndNoOlderOneIsTakenInItsPlace) {
  std::filesystem::remove(manifest_);
  const std::string said = refused(1, run_);
  EXPECT_NE(said.find(checkpoint_ + ": damaged: it has no manifest.json"), std::string::npos)
      << said;
  std::filesystem::remove_all(checkpoint_);
  EXPECT_EQ(resume({"--steps", "6"}), train("six", {"--steps", "6"}));
}

TEST_F(DamagedCheckpoint, WithAnUnreadableManifestIsRefused) {
  std::filesystem::resize_file(manifest_, std::filesystem::file_size(manifest_) / 2);
  expect_refused(
      manifest_,
      fmt::format("damaged: not JSON from byte {} on; remove the folder {}, or resume with "
                  "--newest-valid, to go on from the checkpoint before it",
                  std::filesystem::file_size(manifest_) + 1, checkpoint_));
}

}  // namespace
}  // namespace tutti
