// Disks that fill: the path is named, what was there before is whole, and the run goes on once
// there is room.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "support/command.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

const Arguments kJob =
    Arguments{"train", "mlp-points"} +
    set({"train.steps=2000", "train.eval_every=0", "train.checkpoint_every=50", "train.warmup=0"});

/// Limits files to `bytes`; the way a full disk is played where nothing may be mounted.
std::function<void()> file_limit(rlim_t bytes) {
  return [bytes] {
    const rlimit limit{bytes, bytes};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  };
}

/// A file system of its own in a mount namespace of this test's own; false where that is not
/// permitted.
bool mount_small(const std::string& folder, const std::string& size) {
  const std::string uid = fmt::format("0 {} 1", ::getuid()),
                    gid = fmt::format("0 {} 1", ::getgid());
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << uid;
    std::ofstream("/proc/self/gid_map") << gid;
  }
  return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", folder.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
}

/// The hash of the job after `steps` steps on one rank, never disturbed.
std::string undisturbed(const std::string& out, int64_t steps) {
  Command command(kJob + Arguments{"--ranks", "1", "--steps", std::to_string(steps), "--out", out});
  EXPECT_EQ(command.wait(), 0) << command.err();
  return command.hash();
}

int64_t latest_step(const std::string& run) {
  return std::stoll(std::filesystem::read_symlink(run + "/checkpoints/latest").string().substr(5));
}

/// What holds after a run that failed in the middle for want of space under `run`.
void expect_whole(Command& failed, const std::string& run, const std::string& reason) {
  EXPECT_EQ(failed.wait(), 1) << failed.out();
  const auto lines = lines_of(failed.err());
  ASSERT_GE(lines.size(), 2u);
  EXPECT_NE(lines[1].find(run + "/"), std::string::npos) << lines[1];
  EXPECT_TRUE(lines[1].ends_with(reason)) << lines[1];
  EXPECT_EQ(half_written(run), std::vector<std::string>{});
  EXPECT_TRUE(failed.processes().empty());
}

TEST(FullDisk, LeavesTheLastCheckpointWholeAndTheRunGoesOnOnceThereIsRoom) {
  TempFolder folder;
  const std::string disk = folder / "disk", run = disk + "/run";
  std::filesystem::create_directory(disk);
  const bool mounted = mount_small(disk, "1m");
  RecordProperty("mounted", mounted);
  {
    // Without a mount: the metrics are what outgrows a limit on the size of files.
    Command failed(kJob + Arguments{"--ranks", "2", "--out", run} +
                       set({mounted ? "layout.transport=shm" : "layout.transport=tcp"}),
                   mounted ? std::function<void()>{} : file_limit(100 << 10));
    expect_whole(failed, run, mounted ? "No space left on device" : "File too large");
  }
  const int64_t step = latest_step(run);
  ASSERT_GE(step, 50);
  for (int64_t old = 50; old < step; old += 50)
    std::filesystem::remove_all(run + "/checkpoints/" + fmt::format("step-{:08}", old));

  const int64_t next = step + 20;
  Command resumed({"train", "--resume", run, "--ranks", "3", "--steps", std::to_string(next)});
  EXPECT_EQ(resumed.wait(), 0) << resumed.err();
  EXPECT_EQ(resumed.hash(), undisturbed(folder / "straight", next));
  EXPECT_EQ(metric_of(run, "step", "loss"), metric_of(folder / "straight", "step", "loss"));
  if (mounted) EXPECT_EQ(::umount(disk.c_str()), 0);
}

TEST(FullDisk, ThatHasNoRoomForTheJobLeavesNoRun) {
  TempFolder folder;
  Command command(kJob + Arguments{"--ranks", "2", "--out", folder / "run"}, file_limit(512));
  EXPECT_EQ(command.wait(), 1);
  EXPECT_TRUE(command.says("run/job.toml")) << command.err();
  EXPECT_TRUE(command.says("File too large")) << command.err();
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

TEST(FullDisk, ThatHasNoRoomForACheckpointNamesItAndLeavesNoPartOfIt) {
  TempFolder folder;
  const std::string run = folder / "run";
  // tcp: shared segments would be refused at the start by this limit.
  Command command(kJob + Arguments{"--ranks", "3", "--out", run} + set({"layout.transport=tcp"}),
                  file_limit(18 << 10));
  expect_whole(command, run, "File too large");
  EXPECT_TRUE(command.says(".safetensors")) << command.err();
  EXPECT_FALSE(std::filesystem::exists(run + "/checkpoints/latest"));
  Command again(kJob + Arguments{"--out", run});
  EXPECT_EQ(again.wait(), 1);
  EXPECT_TRUE(again.says("ended without a checkpoint")) << again.err();
}

}  // namespace
}  // namespace tutti
