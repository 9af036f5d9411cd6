// Runs the real `tutti` command as a child process: its output is captured, its ranks are known by
// their pids, signals can be sent, and what it leaves behind is found.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"

namespace tutti::testing_support {

using Seconds = std::chrono::duration<double>;
using Arguments = std::vector<std::string>;

/// A folder of the test's own, removed with all that is in it.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tutti-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw_errno("make", pattern);
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

/// Looks every other millisecond; false when `limit` passed first.
inline bool eventually(const std::function<bool()>& condition, Seconds limit = Seconds(20)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// The whole lines of a file that may still grow; none when it does not exist.
inline std::vector<std::string> lines_in(const std::string& path) {
  std::string text = std::filesystem::exists(path) ? read_file(path) : "";
  text.resize(text.rfind('\n') + 1);
  return lines_of(text);
}

/// The command that the build names, else the one next to this program.
inline std::string command_path() {
#ifdef TUTTI_COMMAND
  return TUTTI_COMMAND;
#else
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "tutti";
#endif
}

/// One run of the command, in a process group of its own; killed with its ranks when the test is
/// done with it.
class Command {
 public:
  explicit Command(const Arguments& arguments, const std::function<void()>& before_exec = {}) {
    static int count = 0;
    mark_ = "TUTTI_TEST_MARK=" + std::to_string(::getpid()) + "-" + std::to_string(++count);
    for (const char* name : {"out", "err"}) folder_.write(name, "");
    pid_ = ::fork();
    if (pid_ < 0) throw_errno("start", path_);
    if (pid_ == 0) exec(arguments, before_exec);
    ::setpgid(pid_, pid_);  // in both processes: whoever comes first
  }
  ~Command() {
    if (!ended_) ::kill(-pid_, SIGKILL);
    wait();
    for (pid_t left : processes()) ::kill(left, SIGKILL);  // where the test has failed
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t pid() const { return pid_; }
  std::string out() const { return read_file(folder_ / "out"); }
  std::string err() const { return read_file(folder_ / "err"); }
  bool says(const std::string& text) const {
    return out().find(text) != std::string::npos || err().find(text) != std::string::npos;
  }
  /// The words after a line's first words: value("state sha256 "). Empty when no line begins so.
  std::string value(const std::string& prefix) const {
    for (const std::string& line : lines_of(out()))
      if (line.starts_with(prefix)) return line.substr(prefix.size());
    return "";
  }
  std::string hash() const { return value("state sha256 "); }

  /// Waits until the pids of n ranks are printed.
  std::vector<pid_t> ranks(int n) const {
    std::vector<pid_t> pids;
    EXPECT_TRUE(eventually([&] {
      pids.clear();
      for (int r = 0; r < n; ++r)
        if (const std::string pid = value("rank " + std::to_string(r) + " pid "); !pid.empty())
          pids.push_back(std::stoi(pid));
      return static_cast<int>(pids.size()) == n;
    })) << out()
        << err();
    return pids;
  }

  void signal(int number) const { ::kill(pid_, number); }
  void signal_group(int number) const { ::kill(-pid_, number); }

  /// The exit code; 128 + the signal that ended it; -1 when it did not end in time (it is killed
  /// then).
  int wait(Seconds limit = Seconds(60)) {
    if (ended_) return code_;
    int status = 0;
    const bool in_time =
        eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, limit);
    if (!in_time) {
      ::kill(-pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
    }
    ended_ = true;
    code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (!in_time) code_ = -1;
    return code_;
  }

  /// Processes that this command started, itself included, and that still live.
  std::vector<pid_t> processes() const {
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::ifstream environ(entry.path() / "environ");
      for (std::string variable; std::getline(environ, variable, '\0');)
        if (variable == mark_) found.push_back(std::stoi(name));
    }
    return found;
  }

 private:
  [[noreturn]] void exec(const Arguments& arguments, const std::function<void()>& before_exec) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setpgid(0, 0);
    for (const auto& [fd, name] : {std::pair{STDOUT_FILENO, "out"}, {STDERR_FILENO, "err"}})
      ::dup2(::open((folder_ / name).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666), fd);
    ::putenv(mark_.data());
    if (before_exec) before_exec();
    std::vector<char*> words{path_.data()};
    for (const std::string& argument : arguments)
      words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    ::execv(path_.c_str(), words.data());
    ::_exit(127);
  }

  TempFolder folder_;
  std::string path_ = command_path();
  std::string mark_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int code_ = -1;
};

inline Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// "layout.ranks=2" and so on as --set arguments.
inline Arguments set(const Arguments& settings) {
  Arguments arguments;
  for (const std::string& setting : settings) arguments = arguments + Arguments{"--set", setting};
  return arguments;
}

/// A job of about a millisecond a step on any number of ranks up to 5; it goes on for as long as a
/// test needs it.
inline const Arguments kEndlessMlp =
    Arguments{"mlp-points"} +
    set({"train.lanes=5", "train.micro_batch_size=4", "train.steps=1000000", "train.eval_every=0",
         "model.hidden=[16]"});

/// Numbers that a run wrote for every step, as it wrote them.
inline std::vector<double> metric_of(const std::string& run, const std::string& event,
                                     const std::string& field) {
  std::vector<double> values;
  for (const std::string& line : lines_in(run + "/metrics.jsonl"))
    if (const auto record = nlohmann::json::parse(line); record.at("event") == event)
      values.push_back(record.at(field));
  return values;
}

/// Waits until the run has committed `steps` steps.
inline bool reaches(const std::string& run, size_t steps) {
  return eventually([&] { return lines_in(run + "/metrics.jsonl").size() >= steps; });
}

/// Files and folders under `folder` that only a process that was interrupted leaves.
inline std::vector<std::string> half_written(const std::string& folder) {
  std::vector<std::string> found;
  if (!std::filesystem::exists(folder)) return found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const bool checkpoint =
        entry.is_directory() && !entry.is_symlink() && name.starts_with("step-");
    if (name.starts_with(".") || name.find(".tmp") != std::string::npos ||
        (checkpoint && !std::filesystem::exists(entry.path() / "manifest.json")))
      found.push_back(entry.path());
  }
  return found;
}

}  // namespace tutti::testing_support
