// The folder of a run: made whole or not at all, never over another, and cleaned of what was left unfinished.
#include "train/run_folder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

class RunFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tutti-run-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    before_ = fs::current_path();
    fs::current_path(root_);
  }
  void TearDown() override {
    fs::current_path(before_);
    fs::remove_all(root_);
  }
  static void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << text;
  }
  static std::set<std::string> names(const std::string& folder) {
    std::set<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) found.insert(fs::relative(entry.path(), folder));
    return found;
  }
  template <typename F>
  static std::string fault(F f) {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "no fault";
  }

  std::string root_;
  fs::path before_;
  Job job_ = parse_job("", "tiny.toml", {});
};

TEST_F(RunFolderTest, HoldsTheJobItWasMadeFor) {
  job_.train.seed = 77;
  const RunFolder folder = create_run(root_ + "/a/b", job_);
  EXPECT_EQ(names(folder.path), (std::set<std::string>{"job.toml", "trace", "checkpoints"}));
  const Job read = parse_job(read_file(folder.job()), folder.job(), {});
  EXPECT_EQ(read.train.seed, 77u);
  EXPECT_EQ(read.name, "tiny");
  EXPECT_EQ(open_run(folder.path).path, folder.path);
}

TEST_F(RunFolderTest, WithoutANameIsTheFirstFreeNumber) {
  EXPECT_EQ(create_run("", job_).path, "runs/tiny-1");
  EXPECT_EQ(create_run("", job_).path, "runs/tiny-2");
  fs::remove_all("runs/tiny-1");
  EXPECT_EQ(create_run("", job_).path, "runs/tiny-1");
}

TEST_F(RunFolderTest, IsNeverMadeWhereSomethingIs) {
  const RunFolder folder = create_run("run", job_);
  EXPECT_NE(fault([&] { create_run("run", job_); }).find("ended without a checkpoint"), std::string::npos);
  write(folder.checkpoints() + "/step-00000003/manifest.json", "{}");
  EXPECT_NE(fault([&] { create_run("run", job_); }).find("go on with --resume run"), std::string::npos);
  write("other/file", "");
  EXPECT_EQ(fault([&] { create_run("other", job_); }), "--out other: the folder is not empty");
  EXPECT_EQ(names("other"), std::set<std::string>{"file"});
}

TEST_F(RunFolderTest, IsRemovedWithAllThatARunMakesButNotAFolderOfTheUser) {
  fs::create_directory("mine");
  for (const char* path : {"mine", "theirs"}) {
    const RunFolder folder = create_run(path, job_);
    write(folder.metrics(), "");
    write(folder.trace(0), "");
    remove_run(folder);
  }
  EXPECT_TRUE(fs::is_empty("mine"));
  EXPECT_FALSE(fs::exists("theirs"));
}

TEST_F(RunFolderTest, IsCleanedOfWhatNobodyWillFinish) {
  const RunFolder folder = create_run("run", job_);
  write(folder.checkpoints() + "/step-00000003/manifest.json", "{}");
  const auto whole = names("run");
  write(folder.checkpoints() + "/.writing/state.safetensors", "half");
  fs::create_symlink("step-00000009", folder.checkpoints() + "/.latest");
  write(folder.trace(1) + ".tmp-12-0", "half");
  write(folder.metrics() + ".tmp-12-0", "half");
  remove_unfinished(folder);
  EXPECT_EQ(names("run"), whole);
}

TEST_F(RunFolderTest, KeepsTheMetricsOfTheStepsThatAreKept) {
  const RunFolder folder = create_run("run", job_);
  EXPECT_FALSE(has_metrics(folder));
  cut_metrics(folder, 3);
  EXPECT_FALSE(fs::exists(folder.metrics()));
  write(folder.metrics(), "{\"step\":1}\n{\"step\":2}\n{\"event\":\"eval\",\"step\":2}\n{\"step\":3}\n{\"ste");
  EXPECT_TRUE(has_metrics(folder));
  cut_metrics(folder, 2);
  EXPECT_EQ(read_file(folder.metrics()), "{\"step\":1}\n{\"step\":2}\n{\"event\":\"eval\",\"step\":2}\n");
}

TEST_F(RunFolderTest, LosesTheTracesOfAnEarlierStart) {
  const RunFolder folder = create_run("run", job_);
  const auto fresh = names("run");
  for (int rank : {0, 1, 7}) write(folder.trace(rank), "{}\n");
  remove_traces(folder);
  EXPECT_EQ(names("run"), fresh);
}

TEST_F(RunFolderTest, GoesOnFromItsHighestStepOrNotAtAll) {
  const RunFolder folder = create_run("run", job_);
  EXPECT_EQ(fault([&] { checkpoint_of(folder); }), "run: it has no checkpoint to go on from");
  for (const char* step : {"step-00000003", "step-99999999", "step-100000000"})
    write(folder.checkpoints() + "/" + step + "/manifest.json", "{}");
  EXPECT_EQ(checkpoint_of(folder), "run/checkpoints/step-100000000");
  fs::remove(folder.checkpoints() + "/step-100000000/manifest.json");
  EXPECT_TRUE(fault([&] {
                checkpoint_of(folder);
              }).starts_with("run/checkpoints/step-100000000: damaged: it has no manifest.json"));
}

TEST_F(RunFolderTest, IsLockedForOthersUntilTheLastHolderIsGone) {
  const RunFolder folder = create_run("run", job_);
  {
    const Fd lock = lock_run(folder);
    EXPECT_EQ(fault([&] { lock_run(folder); }), "run: another process is training in it");
  }
  EXPECT_EQ(fault([&] { lock_run(folder); }), "no fault");
}

TEST_F(RunFolderTest, OfWhatIsNoneIsRefused) {
  EXPECT_EQ(fault([] { open_run("none"); }), "none: no such run");
  fs::create_directory("empty");
  EXPECT_EQ(fault([] { open_run("empty"); }), "empty: not a run (it has no job.toml)");
}

}  // namespace
}  // namespace tutti
