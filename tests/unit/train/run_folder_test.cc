// The folder of a run: made whole or not at all, never over another, and cleaned of what was left
// unfinished.
#include "train/run_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "state/manifest.h"

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
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      found.insert(fs::relative(entry.path(), folder));
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
  const RunFolder folder = create_run(root_ + "/a/b", job_).folder;
  EXPECT_EQ(names(folder.path), (std::set<std::string>{"job.toml", "trace", "checkpoints"}));
  const Job read = parse_job(read_file(folder.job()), folder.job(), {});
  EXPECT_EQ(read.train.seed, 77u);
  EXPECT_EQ(read.name, "tiny");
  EXPECT_EQ(open_run(folder.path).path, folder.path);
}

TEST_F(RunFolderTest, WithoutANameIsTheFirstFreeNumber) {
  EXPECT_EQ(create_run("", job_).folder.path, "runs/tiny-1");
  EXPECT_EQ(create_run("", job_).folder.path, "runs/tiny-2");
  fs::remove_all("runs/tiny-1");
  EXPECT_EQ(create_run("", job_).folder.path, "runs/tiny-1");
}

TEST_F(RunFolderTest, IsNeverMadeWhereSomethingIs) {
  const RunFolder folder = create_run("run", job_).folder;
  EXPECT_NE(fault([&] { create_run("run", job_); }).find("ended without a checkpoint"),
            std::string::npos);
  write(folder.checkpoints() + "/step-00000003/manifest.json", "{}");
  EXPECT_NE(fault([&] { create_run("run", job_); }).find("go on with --resume run"),
            std::string::npos);
  write("other/file", "");
  EXPECT_EQ(fault([&] { create_run("other", job_); }), "--out other: the folder is not empty");
  EXPECT_EQ(names("other"), std::set<std::string>{"file"});
}

TEST_F(RunFolderTest, IsRemovedWithAllThatARunMakesButNotAFolderOfTheUser) {
  fs::create_directory("mine");
  for (const char* path : {"mine", "theirs"}) {
    const RunFolder folder = create_run(path, job_).folder;
    write(folder.metrics(), "");
    write(folder.trace(0), "");
    remove_run(folder);
  }
  EXPECT_TRUE(fs::is_empty("mine"));
  EXPECT_FALSE(fs::exists("theirs"));
}

TEST_F(RunFolderTest, IsCleanedOfWhatNobodyWillFinish) {
  const RunFolder folder = create_run("run", job_).folder;
  write(folder.checkpoints() + "/step-00000003/manifest.json", "{}");
  const auto whole = names("run");
  write(folder.checkpoints() + "/.writing/parameters.safetensors", "half");
  fs::create_symlink("step-00000009", folder.checkpoints() + "/.latest");
  write(folder.trace(1) + ".tmp-12-0", "half");
  write(folder.metrics() + ".tmp-12-0", "half");
  remove_unfinished(folder);
  EXPECT_EQ(names("run"), whole);
}

TEST_F(RunFolderTest, KeepsTheMetricsOfTheStepsThatAreKept) {
  const RunFolder folder = create_run("run", job_).folder;
  EXPECT_FALSE(has_metrics(folder));
  cut_metrics(folder, 3);
  EXPECT_FALSE(fs::exists(folder.metrics()));
  write(folder.metrics(),
        "{\"step\":1}\n{\"step\":2}\n{\"event\":\"eval\",\"step\":2}\n{\"step\":3}\n7\n[]\n{"
        "\"step\":\"x\"}\n{\"ste");
  EXPECT_TRUE(has_metrics(folder));
  cut_metrics(folder, 2);
  EXPECT_EQ(read_file(folder.metrics()),
            "{\"step\":1}\n{\"step\":2}\n{\"event\":\"eval\",\"step\":2}\n");
}

TEST_F(RunFolderTest, LosesTheTracesOfAnEarlierStart) {
  const RunFolder folder = create_run("run", job_).folder;
  const auto fresh = names("run");
  for (int rank : {0, 1, 7}) write(folder.trace(rank), "{}\n");
  remove_traces(folder);
  EXPECT_EQ(names("run"), fresh);
}

TEST_F(RunFolderTest, GoesOnFromItsHighestStepOrNotAtAll) {
  const RunFolder folder = create_run("run", job_).folder;
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
  const RunFolder folder = create_run("run", job_).folder;
  {
    const Fd lock = lock_run(folder);
    EXPECT_EQ(fault([&] { lock_run(folder); }), "run: another process is training in it");
  }
  EXPECT_EQ(fault([&] { lock_run(folder); }), "no fault");
}

/// What `processes` forked processes get of create_run(path), called by all at the same time; a
/// job's seed tells whose it is. All of them stay until the last is done, as a run would.
std::vector<std::string> start_at_once(int processes, const std::string& path, Job job) {
  struct Shared {
    std::atomic<int> ready{0}, done{0};
    char got[16][256] = {};
  };
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& shared = *new (memory) Shared;
  const auto meet = [&](std::atomic<int>& count) {
    for (++count; count < processes;) ::sched_yield();
  };
  std::vector<pid_t> children;
  for (int i = 0; i < processes; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    job.train.seed = static_cast<uint64_t>(i);
    meet(shared.ready);
    LockedRun run;
    std::string got;
    try {
      run = create_run(path, job);
      got = run.folder.path;
    } catch (const Error& e) {
      got = e.what();
    }
    std::snprintf(shared.got[i], sizeof shared.got[i], "%s", got.c_str());
    meet(shared.done);
    ::_exit(0);
  }
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  std::vector<std::string> all(std::begin(shared.got), std::begin(shared.got) + processes);
  ::munmap(memory, sizeof(Shared));
  return all;
}

TEST_F(RunFolderTest, IsOneOfThoseThatStartAtTheSameTimeAndHoldsThatOnesJob) {
  for (int round = 0; round < 20; ++round) {
    const std::string path = fmt::format("run-{}", round);
    const auto got = start_at_once(4, path, job_);
    ASSERT_EQ(std::count(got.begin(), got.end(), path), 1) << testing::PrintToString(got);
    ASSERT_EQ(
        std::count(got.begin(), got.end(),
                   fmt::format("--out {}: a run is going on in it; choose another folder", path)),
        3)
        << testing::PrintToString(got);
    const auto winner =
        static_cast<uint64_t>(std::find(got.begin(), got.end(), path) - got.begin());
    EXPECT_EQ(job_of_run(open_run(path)).train.seed, winner);
  }
}

TEST_F(RunFolderTest, WithoutANameIsEachOnesOwn) {
  for (int round = 0; round < 20; ++round) {
    const auto got = start_at_once(4, "", job_);
    ASSERT_EQ(std::set<std::string>(got.begin(), got.end()).size(), 4u)
        << testing::PrintToString(got);
    for (uint64_t i = 0; i < got.size(); ++i) EXPECT_EQ(job_of_run(open_run(got[i])).train.seed, i);
    fs::remove_all("runs");
  }
}

TEST_F(RunFolderTest, InWhichARunIsGoingOnIsNotOfferedForRemoval) {
  const LockedRun run = create_run("run", job_);
  EXPECT_EQ(fault([&] { create_run("run", job_); }),
            "--out run: a run is going on in it; choose another folder");
}

TEST_F(RunFolderTest, TakesTheFoldersAboveItAlongThatItMadeAndThatAreEmpty) {
  fs::create_directories("mine");
  remove_run(create_run("mine/a/b/c", job_).folder);
  EXPECT_EQ(names("."), std::set<std::string>{"mine"});
  const RunFolder first = create_run("mine/a/b", job_).folder,
                  second = create_run("mine/a/c", job_).folder;
  remove_run(first);
  EXPECT_TRUE(fs::is_directory("mine/a/c"));
  EXPECT_FALSE(fs::exists("mine/a/b"));
  write("./file", "");
  EXPECT_EQ(fault([&] { create_run("new/../file/run", job_); }),
            "cannot make new/../file/run: Not a directory");
  EXPECT_FALSE(fs::exists("new"));
}

TEST_F(RunFolderTest, ThatCannotBeLookedAtIsNamedWithTheReason) {
  const std::string longest(300, 'x');
  fs::create_symlink("circle", "circle");
  EXPECT_EQ(fault([&] { create_run(longest, job_); }),
            "cannot look at " + longest + ": File name too long");
  EXPECT_EQ(fault([&] { open_run(longest); }),
            "cannot look at " + longest + ": File name too long");
  EXPECT_EQ(fault([&] { create_run("circle/run", job_); }),
            "cannot look at circle/run: Too many levels of symbolic links");
}

TEST_F(RunFolderTest, OfWhichJobTomlIsGoneHasItsJobInTheCheckpoint) {
  const RunFolder folder = create_run("run", job_).folder;
  job_.train.seed = 9;
  const std::string checkpoint = folder.checkpoints() + "/step-00000003";
  fs::create_directory(checkpoint);
  write_manifest(checkpoint, {{3, 0, ""}, "", {}, to_toml(job_), ""});
  fs::remove(folder.job());
  EXPECT_EQ(job_of_run(open_run("run"), {{"train.lr", "0.5"}}).train.seed, 9u);
  EXPECT_EQ(job_of_run(open_run("run"), {{"train.lr", "0.5"}}).train.lr, 0.5);
}

TEST_F(RunFolderTest, OfWhatIsNoneIsRefused) {
  EXPECT_EQ(fault([] { open_run(""); }), "the name of the run is empty");
  EXPECT_EQ(fault([] { open_run("none"); }), "none: no such run");
  fs::create_directory("empty");
  EXPECT_EQ(fault([] { open_run("empty"); }), "empty: not a run (it has no job.toml)");
}

}  // namespace
}  // namespace tutti
