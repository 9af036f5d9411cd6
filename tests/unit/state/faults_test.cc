// Real faults: a disk that fills, a process that is killed in the middle of a save.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
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

/// Whether a system call changes what is on the disk.
bool writes(long call, unsigned long flags) {
  switch (call) {
    case SYS_open:
    case SYS_openat:
      return (flags & O_CREAT) != 0;
    case SYS_write:
    case SYS_pwrite64:
    case SYS_fallocate:
    case SYS_ftruncate:
    case SYS_fsync:
    case SYS_sync_file_range:
    case SYS_mkdir:
    case SYS_mkdirat:
    case SYS_symlink:
    case SYS_symlinkat:
    case SYS_rename:
    case SYS_renameat:
    case SYS_renameat2:
    case SYS_unlink:
    case SYS_unlinkat:
    case SYS_rmdir:
      return true;
    default:
      return false;
  }
}

/// Runs `body` in a process of its own and kills it when it is about to make its write number
/// `last`, from 0. Returns the call that it was killed at; -1 if it came to its end.
long killed_at(int last, const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    raise(SIGSTOP);
    body();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD);
  for (int made = 0;;) {
    EXPECT_EQ(ptrace(PTRACE_SYSCALL, child, nullptr, nullptr), 0);
    EXPECT_EQ(waitpid(child, &status, 0), child);
    if (!WIFSTOPPED(status)) break;
    __ptrace_syscall_info info{};
    ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info);
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY) continue;
    const auto call = static_cast<long>(info.entry.nr);
    if (!writes(call, info.entry.args[call == SYS_open ? 1 : 2]) || made++ < last) continue;
    kill(child, SIGKILL);
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return call;
  }
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  return -1;
}

TEST_F(CheckpointFaultTest, AKillAtAnyWriteLeavesAWholeCheckpointAndNothingInTheWay) {
  const auto state = [](int64_t step) { return OwnedState(step, static_cast<float>(step), 100); };
  // A save that also removes the oldest of the two before it, and one that replaces its own step.
  for (const int64_t saved : {3, 2}) {
    std::set<long> calls;
    for (int write = 0;; ++write) {
      const std::string folder = fmt::format("{}/{} {}", folder_, saved, write);
      SCOPED_TRACE(folder);
      for (const int64_t step : {1, 2}) save_checkpoint(folder, state(step).state, "");
      OwnedState next = state(saved);
      next.state.entries[0].values[0] = 77;  // of step 2 the second time it is saved
      const long call = killed_at(write, [&] {
        try {
          save_checkpoint(folder, next.state, "");
          keep_last(folder, 2);
        } catch (...) {
          _exit(1);
        }
      });

      // Everything that looks complete is, with the values of before or of after.
      const auto all = complete_checkpoints(folder);
      ASSERT_FALSE(all.empty());
      for (const auto& [step, path] : all) {
        OwnedState loaded(0, 0, 100);
        EXPECT_EQ(load_fault(path, loaded.state), "no fault");
        const std::string hash = state_hash(loaded.state);
        EXPECT_TRUE(hash == state_hash(state(step).state) ||
                    (step == saved && hash == state_hash(next.state)))
            << path;
      }
      EXPECT_GE(all.rbegin()->first, 2);
      EXPECT_TRUE(fs::exists(folder + "/latest/manifest.json"));

      save_checkpoint(folder, state(4).state, "");
      keep_last(folder, 1);
      EXPECT_EQ(names_in(folder), (std::set<std::string>{"latest", "step-00000004"}));
      if (call < 0) break;
      calls.insert(call);
    }
    for (const long call : {SYS_pwrite64, SYS_fsync, SYS_renameat2, SYS_rename, SYS_symlink})
      EXPECT_TRUE(calls.contains(call)) << "no kill at call " << call;
  }
}

}  // namespace
}  // namespace tutti
