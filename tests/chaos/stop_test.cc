// Signals: the step is finished, a checkpoint saved, and the run goes on from it as if nothing had
// happened; at every phase of a run, from the first moment to the last.
#include <fmt/format.h>
#include <pty.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>

#include "support/command.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

const Arguments kJob = Arguments{"train"} + kEndlessMlp;

int64_t steps_of(const std::string& run) {
  return static_cast<int64_t>(metric_of(run, "step", "loss").size());
}

/// The hash after so many steps of an uninterrupted run.
std::string straight(const Arguments& job, int64_t steps) {
  TempFolder folder;
  Command command(
      job + Arguments{"--ranks", "1", "--steps", std::to_string(steps), "--out", folder / "run"} +
      set({"train.checkpoint_every=0"}));
  EXPECT_EQ(command.wait(), 0) << command.err();
  return command.hash();
}

/// Lines for the user on stderr.
std::vector<std::string> messages(const Command& command) {
  std::vector<std::string> found;
  for (const std::string& line : lines_of(command.err()))
    if (!line.empty()) found.push_back(line);
  return found;
}

struct Case {
  std::string name;
  Arguments before, after;  // layout of the run that is stopped, and of the one that goes on
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class CtrlC : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Of, CtrlC,
                         testing::Values(Case{"Processes", {"layout.ranks=2"}, {"layout.ranks=3"}},
                                         Case{"Threads",
                                              {"layout.ranks=3", "layout.workers=thread"},
                                              {"layout.ranks=1"}},
                                         Case{"Tcp",
                                              {"layout.ranks=3", "layout.transport=tcp"},
                                              {"layout.ranks=3", "layout.transport=tcp"}}),
                         [](const auto& info) { return info.param.name; });

TEST_P(CtrlC, SavesAndTheRunGoesOnAsIfNeverStopped) {
  TempFolder folder;
  const std::string run = folder / "run";
  Command stopped(kJob + set(GetParam().before) + Arguments{"--out", run});
  ASSERT_TRUE(reaches(run, 30)) << stopped.err();
  stopped.signal_group(SIGINT);  // as a terminal does: to the launcher and all ranks
  EXPECT_EQ(stopped.wait(), 130) << stopped.err();
  const int64_t step = steps_of(run);
  EXPECT_TRUE(stopped.says("stopped at step " + std::to_string(step))) << stopped.out();
  EXPECT_TRUE(std::filesystem::exists(run + "/checkpoints/" + fmt::format("step-{:08}", step)));
  EXPECT_EQ(stopped.hash(), straight(kJob, step));
  EXPECT_EQ(half_written(run), std::vector<std::string>{});
  EXPECT_TRUE(stopped.processes().empty());

  Command resumed(Arguments{"train", "--resume", run, "--steps", std::to_string(step + 10)} +
                  set(GetParam().after));
  EXPECT_EQ(resumed.wait(), 0) << resumed.err();
  EXPECT_EQ(resumed.hash(), straight(kJob, step + 10));
  EXPECT_EQ(steps_of(run), step + 10);
}

/// When a signal comes.
struct Phase {
  std::string name;
  Arguments job;
  /// Waits for it; false: it never came.
  std::function<bool(const Command&, const std::string& run)> reached;
  bool begun = true;  // there is something to save
};
void PrintTo(const Phase& phase, std::ostream* out) { *out << phase.name; }

bool has_event(const std::string& run, const std::string& event) {
  for (const std::string& line : lines_in(run + "/events.jsonl"))
    if (nlohmann::json::parse(line).at("event") == event) return true;
  return false;
}

/// Stands for a folder with a FIFO in it that nobody writes to, as a file of tensors and as data.
constexpr const char* kStuck = "@stuck";

/// Makes it and returns its path.
std::string make_stuck(const TempFolder& folder) {
  std::filesystem::create_directory(folder / "stuck");
  EXPECT_EQ(::mkfifo((folder / "stuck/parameters.safetensors").c_str(), 0600), 0);
  return folder / "stuck";
}

std::vector<Phase> phases() {
  const auto ranks_started = [](const Command& command, const std::string&) {
    return command.ranks(2).size() == 2;
  };
  // The launcher and the program that loads libraries; then a child of that, which plans.
  const auto processes_started = [](size_t count) {
    return [count](const Command& command, const std::string&) {
      return eventually([&] { return command.processes().size() >= count; });
    };
  };
  const auto event = [](const std::string& name) {
    return [name](const Command&, const std::string& run) {
      return eventually([&] { return has_event(run, name); });
    };
  };
  const auto writing = [](const Command&, const std::string& run) {
    return reaches(run, 2) &&
           eventually([&] { return std::filesystem::exists(run + "/checkpoints/.writing"); });
  };
  const auto evaluating = [](const Command&, const std::string& run) {
    return eventually(
        [&] { return steps_of(run) >= 1 && metric_of(run, "eval", "held_out_loss").empty(); });
  };
  const Arguments gpt =
      Arguments{"train", "gpt-kjv"} +
      set({"data.kind=walk", "model.layers=1", "model.width=16", "model.heads=1",
           "model.context=16", "train.lanes=2", "train.micro_batch_size=1", "train.micro_batches=1",
           "train.steps=2", "train.eval_every=0", "train.sample_bytes=1048576"});
  const Arguments pipeline{"layout.pipeline=2", "model.init_from=" + std::string(kStuck)};
  return {
      {"Loading", kJob, processes_started(2), false},
      {"Planning", kJob + set(pipeline), processes_started(3), false},
      {"Model", kJob + set({"model.init_from=" + std::string(kStuck)}), ranks_started, false},
      {"Data",
       gpt +
           set({"data.kind=text", std::string("data.path=") + kStuck + "/parameters.safetensors"}),
       ranks_started, false},
      {"FirstStep", kJob, event("start")},
      {"Steps", kJob, [](const Command&, const std::string& run) { return reaches(run, 20); }},
      {"Evaluation", kJob + set({"train.eval_every=1", "train.eval_batches=20000"}), evaluating},
      {"Checkpoint",
       kJob +
           set({"model.hidden=[600, 600]", "train.checkpoint_every=1", "train.micro_batch_size=1"}),
       writing},
      {"Sample", gpt, event("saved")},
  };
}

class Stop : public testing::TestWithParam<Phase> {};
INSTANTIATE_TEST_SUITE_P(During, Stop, testing::ValuesIn(phases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Stop, SaysSoAtOnceSavesWhatThereIsAndLeavesNothingOver) {
  const Phase& phase = GetParam();
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    TempFolder folder;
    const std::string run = folder / "run", stuck = make_stuck(folder);
    Arguments job = phase.job;
    for (std::string& word : job)
      if (const size_t at = word.find(kStuck); at != std::string::npos)
        word.replace(at, strlen(kStuck), stuck);
    Command command(job + Arguments{"--ranks", "2", "--out", run});
    ASSERT_TRUE(phase.reached(command, run)) << command.out() << command.err();
    command.signal_group(signal);
    command.signal(signal);  // as `timeout` does: once more, at once
    EXPECT_EQ(command.wait(), 128 + signal) << command.out() << command.err();

    const auto said = messages(command);
    ASSERT_EQ(said.size(), 1u) << command.err();
    EXPECT_NE(said[0].find(phase.begun ? "finishing the step and saving"
                                       : "stopped before the first step"),
              std::string::npos)
        << said[0];
    EXPECT_EQ(half_written(run), std::vector<std::string>{});
    EXPECT_TRUE(eventually([&] { return command.processes().empty(); }, Seconds(5)));
    EXPECT_EQ(std::filesystem::exists(run), phase.begun);
    if (!phase.begun) continue;
    const int64_t step = steps_of(run);
    EXPECT_TRUE(std::filesystem::exists(run + "/checkpoints/" + fmt::format("step-{:08}", step) +
                                        "/manifest.json"));
    if (signal != SIGTERM || phase.name == "Sample" || phase.name == "FirstStep") continue;
    Command resumed(
        {"train", "--resume", run, "--steps", std::to_string(step + 2), "--ranks", "1"});
    EXPECT_EQ(resumed.wait(), 0) << resumed.err();
    EXPECT_EQ(resumed.hash(), straight(job + set({"train.eval_every=0"}), step + 2));
  }
}

TEST(StopThreads, DuringTheStartEndsThemThoughTheyCannotBeKilled) {
  TempFolder folder;
  Command command(
      kJob +
      set({"model.init_from=" + make_stuck(folder), "layout.workers=thread", "layout.ranks=2"}) +
      Arguments{"--out", folder / "run"});
  command.ranks(2);
  command.signal(SIGINT);
  EXPECT_EQ(command.wait(Seconds(20)), 130) << command.err();
  EXPECT_EQ(messages(command).size(), 1u) << command.err();
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

TEST(StopResumed, BeforeItsFirstStepLeavesTheRunAsItWas) {
  TempFolder folder;
  const std::string run = folder / "run", data = folder.write("text", std::string(4000, 'a'));
  const Arguments gpt =
      Arguments{"train", "gpt-kjv"} +
      set({"data.path=" + data, "model.layers=1", "model.width=16", "model.heads=1",
           "model.context=16", "train.lanes=2", "train.micro_batch_size=1", "train.micro_batches=1",
           "train.sample_bytes=0"});
  Command first(gpt + Arguments{"--steps", "2", "--out", run});
  ASSERT_EQ(first.wait(), 0) << first.err();
  const std::string metrics = read_file(run + "/metrics.jsonl"),
                    events = read_file(run + "/events.jsonl");
  std::filesystem::remove(data);
  ASSERT_EQ(::mkfifo(data.c_str(), 0600), 0);
  Command resumed({"train", "--resume", run, "--ranks", "2"});
  resumed.ranks(2);
  resumed.signal(SIGTERM);
  EXPECT_EQ(resumed.wait(), 143) << resumed.err();
  EXPECT_EQ(read_file(run + "/metrics.jsonl"), metrics);
  EXPECT_TRUE(read_file(run + "/events.jsonl").starts_with(events));
  EXPECT_TRUE(std::filesystem::exists(run + "/trace/rank-0.jsonl"));
  EXPECT_TRUE(std::filesystem::exists(run + "/checkpoints/latest/manifest.json"));
}

TEST(StopAtOnce, ByALaterCtrlCWithoutSaving) {
  TempFolder folder;
  const std::string run = folder / "run";
  Command command(kJob + Arguments{"--ranks", "2", "--out", run});
  ASSERT_TRUE(reaches(run, 5)) << command.err();
  ::kill(command.ranks(2)[1], SIGSTOP);  // so that the step is never finished
  command.signal(SIGINT);
  ASSERT_TRUE(eventually([&] { return command.says("Ctrl-C again stops at once"); }))
      << command.err();
  EXPECT_TRUE(eventually([&] {
    command.signal(SIGINT);
    return command.says("stopped at once");
  })) << command.err();
  EXPECT_EQ(command.wait(), 130) << command.err();
  EXPECT_EQ(messages(command).size(), 2u) << command.err();
  EXPECT_EQ(half_written(run), std::vector<std::string>{});
  EXPECT_TRUE(command.processes().empty());
}

TEST(StopOneRank, BySigtermSavesTheWholeRun) {
  TempFolder folder;
  const std::string run = folder / "run";
  Command command(kJob + Arguments{"--ranks", "3", "--out", run});
  ASSERT_TRUE(reaches(run, 5)) << command.err();
  ::kill(command.ranks(3)[1], SIGTERM);
  EXPECT_EQ(command.wait(), 143) << command.err();
  EXPECT_EQ(
      messages(command),
      (Arguments{"tutti: SIGTERM to rank 1: finishing the step and saving; Ctrl-C stops at once"}));
  EXPECT_TRUE(std::filesystem::exists(run + "/checkpoints/latest/manifest.json"));
}

TEST(StopIgnored, LeavesARunAloneThatWasStartedToIgnoreTheSignal) {
  TempFolder folder;
  const std::string run = folder / "run";
  Command command(kJob + Arguments{"--ranks", "2", "--out", run}, [] {
    // nohup; a background job of a script
    for (int ignored : {SIGHUP, SIGINT}) ::signal(ignored, SIG_IGN);
  });
  ASSERT_TRUE(reaches(run, 5)) << command.err();
  for (int ignored : {SIGHUP, SIGINT}) command.signal_group(ignored);
  EXPECT_TRUE(reaches(run, static_cast<size_t>(steps_of(run)) + 50)) << command.err();
  EXPECT_EQ(command.err(), "");
  command.signal(SIGTERM);
  EXPECT_EQ(command.wait(), 143) << command.err();
}

TEST(StopByHangup, SavesThoughTheTerminalIsGone) {
  TempFolder folder;
  const std::string run = folder / "run", path = command_path();
  int terminal = -1;
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<char*> words{const_cast<char*>(path.c_str())};
    const Arguments arguments = kJob + Arguments{"--ranks", "2", "--out", run};
    for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    ::execv(path.c_str(), words.data());
    ::_exit(127);
  }
  ASSERT_TRUE(reaches(run, 20));
  // what an ssh connection that breaks does: SIGHUP, and nothing can be written any more
  ::close(terminal);
  int status = 0;
  ASSERT_TRUE(eventually([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }));
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 129);
  const std::string saved = fmt::format("{}/checkpoints/step-{:08}", run, steps_of(run));
  EXPECT_TRUE(std::filesystem::exists(saved + "/manifest.json"));
  EXPECT_EQ(half_written(run), std::vector<std::string>{});
}

class Paused : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, Paused, testing::Values("shm", "tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(Paused, AsAWholeForLongerThanTheTimeoutItGoesOn) {
  TempFolder folder;
  const std::string run = folder / "run";
  Command command(kJob + Arguments{"--ranks", "3", "--out", run} +
                  set({"layout.timeout=1", std::string("layout.transport=") + GetParam()}));
  ASSERT_TRUE(reaches(run, 20)) << command.err();
  command.signal_group(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // the pause itself
  command.signal_group(SIGCONT);
  EXPECT_TRUE(reaches(run, static_cast<size_t>(steps_of(run)) + 100)) << command.err();
  command.signal(SIGINT);
  EXPECT_EQ(command.wait(), 130) << command.err();
  EXPECT_EQ(command.hash(), straight(kJob, steps_of(run)));
}

TEST(Descriptors, ThatAreTooFewForTheRanksAreNamedAsTheCauseInOneMessage) {
  for (rlim_t limit : {8, 14, 20}) {
    TempFolder folder;
    Command command(kJob + Arguments{"--ranks", "4", "--out", folder / "run"}, [limit] {
      const rlimit few{limit, limit};
      ::setrlimit(RLIMIT_NOFILE, &few);
    });
    EXPECT_NE(command.wait(), 0) << command.out();
    const auto said = messages(command);
    ASSERT_EQ(said.size(), 1u) << command.err();
    EXPECT_NE(said[0].find("open files"), std::string::npos) << said[0];
    EXPECT_NE(said[0].find("ulimit -"), std::string::npos) << said[0];
    EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  }
}

TEST(Descriptors, ThatAreTooFewForTheProgramThatForksTheRanksAreNamedInOneMessageToo) {
  TempFolder folder;
  // So many that the program has refused them before the launcher has told it of all.
  Command command(kJob + set({"train.lanes=200", "train.micro_batch_size=1"}) +
                  Arguments{"--ranks", "200", "--out", folder / "run"});
  std::vector<pid_t> both;
  ASSERT_TRUE(eventually([&] { return (both = command.processes()).size() == 2; }));
  const rlimit few{30, 30};  // enough to load its libraries
  ::prlimit(both[0] == command.pid() ? both[1] : both[0], RLIMIT_NOFILE, &few, nullptr);
  EXPECT_EQ(command.wait(), 1) << command.out();
  const auto said = messages(command);
  ASSERT_EQ(said.size(), 1u) << command.err();
  EXPECT_NE(said[0].find("Too many open files"), std::string::npos) << said[0];
}

TEST(Descriptors, OfWhichMoreAreAllowedAreTaken) {
  TempFolder folder;
  const auto few = [] {
    const rlimit some{24, 4096};
    ::setrlimit(RLIMIT_NOFILE, &some);
  };
  // More ranks than that: the launcher and the program that forks them have a socket for each.
  const Arguments ranks{"--ranks", "40", "--steps", "2", "--out", folder / "run"};
  Command command(kJob + set({"train.lanes=40", "train.micro_batch_size=1"}) + ranks, few);
  EXPECT_EQ(command.wait(), 0) << command.err();
}

}  // namespace
}  // namespace tutti
