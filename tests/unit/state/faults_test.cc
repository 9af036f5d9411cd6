// Real faults: a disk that fills, a process that is killed in the middle of a save.
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "fixture.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr size_t kRoom = 256 << 10;

/// Makes `folder` a disk of kRoom bytes that only this process sees; where that is not permitted,
/// no file may grow beyond kRoom. Returns the reason a write will fail with.
std::string small_disk(const std::string& folder) {
  const bool alone = unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
  if (alone && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
      mount("tmpfs", folder.c_str(), "tmpfs", 0, fmt::format("size={}", kRoom).c_str()) == 0) {
    return "No space left on device";
  }
  signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{kRoom, kRoom};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return "no small disk to be had";
  return "File too large";
}

using CheckpointFaultTest = CheckpointTest;

TEST_F(CheckpointFaultTest, AFullDiskLeavesNothingHalfWritten) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // its exit code is the number of the first thing that went wrong
    const std::string reason = small_disk(folder_);
    OwnedState small(1, 1), large(2, 2, 100), loaded(0, 9);
    try {
      save_checkpoint(folder_, small.state, "");
    } catch (...) {
      _exit(1);
    }
    try {
      save_checkpoint(folder_, large.state, "");
      _exit(2);
    } catch (const Error& error) {
      if (!contains(error.what(), folder_) || !contains(error.what(), reason)) _exit(3);
    }
    if (names_in(folder_) != std::set<std::string>{"latest", "step-00000001"}) _exit(4);
    if (load_fault(latest_checkpoint(folder_), loaded.state) != "no fault") _exit(5);
    try {
      // the room of the failed one is free again
      save_checkpoint(folder_, OwnedState(3, 3).state, "");
    } catch (...) {
      _exit(6);
    }
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

[[noreturn]] void save_for_ever(const std::string& folder) {
  try {
    for (int64_t step = 1;; ++step) {
      save_checkpoint(folder, OwnedState(step, static_cast<float>(step), 200).state, "");
      fs::remove_all(fmt::format("{}/step-{:08}", folder, step - 2));
    }
  } catch (...) {
    _exit(1);
  }
}

/// Stops the child again and again until it stands in the middle of a save, with one checkpoint
/// complete. False: too late.
bool stop_in_a_save(pid_t child, const std::string& folder) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline) {
    if (!fs::exists(folder + "/.writing/m.safetensors") || latest_checkpoint(folder).empty())
      continue;
    kill(child, SIGSTOP);
    int status = 0;
    if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status)) return false;
    if (fs::exists(folder + "/.writing/m.safetensors") &&
        !fs::exists(folder + "/.writing/manifest.json"))
      return true;
    kill(child, SIGCONT);
  }
  return false;
}

TEST_F(CheckpointFaultTest, AKillInTheMiddleOfASaveLeavesTheCheckpointBeforeIt) {
  for (int round = 0; round < 5; ++round) {
    const std::string folder = fmt::format("{}/{}", folder_, round);
    fs::create_directory(folder);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_for_ever(folder);
    const bool caught = stop_in_a_save(child, folder);
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(caught);
    ASSERT_TRUE(fs::exists(folder + "/.writing"));

    OwnedState loaded(0, 0, 200);
    const std::string latest = latest_checkpoint(folder);
    EXPECT_EQ(load_fault(latest, loaded.state), "no fault");
    const int64_t step = loaded.state.counters.step;
    EXPECT_EQ(state_hash(loaded.state),
              state_hash(OwnedState(step, static_cast<float>(step), 200).state));
    EXPECT_EQ(fs::canonical(folder + "/latest"), fs::canonical(latest));
    save_checkpoint(folder, OwnedState(step + 1, 1, 200).state, "");
    EXPECT_FALSE(fs::exists(folder + "/.writing"));
  }
}

}  // namespace
}  // namespace tutti
