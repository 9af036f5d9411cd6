// One run over several epochs in the same processes: memberships and layouts change between two
// steps, and connections break in the middle of one or between two. The state is that of one rank
// that never stopped. It is long because every test hands the same run from epoch to epoch, and
// differs only in what happens on the way.
#include <gtest/gtest.h>

#include "config/model_rules.h"
#include "launch/local.h"
#include "model/make_model.h"
#include "state/checkpoint.h"
#include "state/load_checkpoint.h"
#include "support/cut_transport.h"
#include "support/layout_runs.h"
#include "support/work_for.h"
#include "train/trainer.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

constexpr const char* kGpt = R"(
[model]
kind = "gpt"
layers = 4
width = 32
heads = 4
context = 16
vocab = 64
dropout = 0.1
tied = true
[data]
kind = "walk"
[train]
lanes = 4
micro_batches = 2
micro_batch_size = 2
steps = 8
lr = 1e-2
warmup = 2
weight_decay = 0.1
tensor_slices = 2
[numerics]
device = "cpu"
)";

Job job_of(const std::string& settings) {
  std::vector<Setting> list;
  const Arguments arguments = settings_of(settings);
  for (size_t i = 1; i < arguments.size(); i += 2) {
    const size_t equals = arguments[i].find('=');
    list.push_back({arguments[i].substr(0, equals), arguments[i].substr(equals + 1)});
  }
  Job job = parse_job(kGpt, "job", list);
  resolve(job, this_machine(), {});
  return job;
}

/// An epoch of a test: who takes part, in which layout, for how many steps.
struct Stretch {
  std::vector<int> members;
  std::string layout;
  int steps = 0;
};

/// What a run says at its end: state and order of the data.
std::string ending(Trainer& trainer) {
  return fmt::format("{} {:016x}", trainer.agreed_hash(), trainer.order_digest());
}

void hand_back(const RankContext& context, const std::string& text) {
  std::snprintf(context.control.result, sizeof context.control.result, "%s", text.c_str());
}

/// In a rank, whose failures reach the test as the launcher's.
void expect(bool holds, const std::string& otherwise) {
  if (!holds) throw Error(otherwise);
}

std::string run_of(const Job& job, const RankFunction& body) {
  LaunchOptions launch;
  launch.ranks = static_cast<int>(job.layout.ranks);
  launch.threads = job.layout.workers == Workers::kThread;
  const LaunchResult result = launch_local(launch, body);
  for (const std::string& failure : result.failures) ADD_FAILURE() << failure;
  return result.result;
}

/// With a folder it saves every step there.
std::string never_changed(const std::string& settings, const std::string& folder = "") {
  const Job job = job_of("ranks=1 " + settings);
  return run_of(job, [&](RankContext& context) {
    const Model model = make_model(job);
    Trainer trainer(job, model, context, "");
    for (int s = 0; s < 8; ++s) {
      trainer.step();
      if (!folder.empty()) trainer.save({.folder = folder});
    }
    hand_back(context, ending(trainer));
  });
}

/// With a folder a checkpoint is begun there at the end of each stretch: the next one begins while
/// it is being written.
std::string changed(const std::string& settings, const std::vector<Stretch>& stretches,
                    const std::string& folder = "") {
  const Job job = job_of("ranks=4 " + stretches[0].layout + " " + settings);
  return run_of(job, [&](RankContext& context) {
    const Model model = make_model(job);
    Trainer trainer(job, model, context, "");
    bool saving = false;
    if (!folder.empty()) trainer.prepare_saves();
    for (size_t s = 0; s < stretches.size(); ++s) {
      const Stretch& stretch = stretches[s];
      const Job placed =
          job_of(fmt::format("ranks={} {} {}", stretch.members.size(), stretch.layout, settings));
      if (s > 0)
        trainer.enter(next_epoch(trainer.membership(), stretch.members, context.worker),
                      placed.layout);
      if (saving) trainer.end_save();
      for (int n = 0; n < stretch.steps && trainer.membership().takes_part(); ++n) trainer.step();
      saving = !folder.empty() && trainer.membership().takes_part();
      if (saving) trainer.begin_save({.folder = folder});
    }
    if (saving) trainer.end_save();
    const std::string end = ending(trainer);
    if (trainer.membership().rank == 0) hand_back(context, end);
  });
}

class Epochs : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    Over, Epochs,
    ::testing::Values("workers=process transport=shm", "workers=process transport=tcp",
                      "workers=thread transport=inproc", "workers=process transport=shm hosts=2"),
    [](const auto& info) {
      std::string name = info.param;
      std::replace_if(
          name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
      return name;
    });

TEST_P(Epochs, ChangeMembersAndLayoutsBetweenStepsInTheSameProcesses) {
  const std::string end = changed(GetParam(), {{{0, 1, 2, 3}, "", 2},
                                               {{0, 1, 2}, "", 2},
                                               {{0, 1, 2, 3}, "pipeline=2 schedule=1f1b", 2},
                                               {{0, 1, 2, 3}, "", 2}});
  EXPECT_EQ(end, never_changed(""));
}

TEST_P(Epochs, ACheckpointThatIsBeingWrittenIsCompleteWhenTheNextBegins) {
  const TempFolder folder;
  const std::string end = changed(GetParam(),
                                  {{{0, 1, 2, 3}, "zero=1", 2},
                                   {{0, 1, 2}, "", 2},
                                   {{3, 1}, "zero=3", 2},
                                   {{0, 1, 2, 3}, "pipeline=2 schedule=1f1b", 2}},
                                  folder / "changed");
  EXPECT_EQ(end, never_changed("", folder / "straight"));
  const auto saved = complete_checkpoints(folder / "changed"),
             straight = complete_checkpoints(folder / "straight");
  ASSERT_EQ(saved.size(), 4U);
  for (const auto& [step, path] : saved) {
    EXPECT_EQ(step % 2, 0);
    EXPECT_EQ(fault_of_checkpoint(path), "");
    EXPECT_EQ(read_manifest(path).state_sha256, read_manifest(straight.at(step)).state_sha256);
  }
}

TEST(Epochs, HandOverSlicesThatNobodyElseHas) {
  // Worker 0 leaves and comes back, ranks change their order, and every kind of slice is cut anew.
  const std::string end = changed("", {{{0, 1, 2, 3}, "zero=3", 2},
                                       {{3, 1}, "zero=2", 1},
                                       {{2, 0, 1, 3}, "tensor=2 pipeline=2", 1},
                                       {{2}, "", 1},
                                       {{0, 1, 2}, "zero=3", 1},
                                       {{3, 2, 1, 0}, "tensor=2 zero=1", 2}});
  EXPECT_EQ(end, never_changed(""));
}

TEST_P(Epochs, ALayoutThatIsRefusedLeavesEverythingAsItWas) {
  const Job job = job_of(fmt::format("ranks=4 {}", GetParam()));
  const std::string end = run_of(job, [&](RankContext& context) {
    const Model model = make_model(job);
    Trainer trainer(job, model, context, "");
    for (int s = 0; s < 3; ++s) trainer.step();

    // Worker 3 would only leave, and hears of the refusal, too.
    LayoutConfig refused = job.layout;
    refused.pipeline = 2;
    refused.cut = "1,2,3";
    const Membership before = trainer.membership();
    bool heard = false;
    try {
      trainer.enter(next_epoch(before, {0, 1}, context.worker), refused);
    } catch (const ConfigError&) {
      heard = true;
    }
    expect(heard && trainer.membership() == before, "the layout was not refused");
    trainer.step();

    const Job good = job_of(fmt::format("ranks=3 zero=2 {}", GetParam()));
    trainer.enter(next_epoch(trainer.membership(), {2, 0, 1}, context.worker), good.layout);
    if (!trainer.membership().takes_part()) return;
    while (trainer.committed() < 8) trainer.step();
    const std::string text = ending(trainer);
    if (trainer.membership().rank == 0) hand_back(context, text);
  });
  EXPECT_EQ(end, never_changed(""));
}

TEST_P(Epochs, OneThatFailsOnTheWayKeepsTheStateForAnother) {
  const Job job = job_of(fmt::format("ranks=4 zero=3 {}", GetParam()));
  const std::string end = run_of(job, [&](RankContext& context) {
    const Model model = make_model(job);
    int made = 0;
    const auto wrap = [&](std::unique_ptr<Transport> inner) {
      if (++made == 2 && context.worker == 2) throw Error("worker 2 has no connection");
      return inner;
    };
    Trainer trainer(job, model, context, "", {}, nullptr, wrap);
    for (int s = 0; s < 3; ++s) trainer.step();

    // The others learn that worker 2 gave the epoch up when it goes on to another one.
    const Job placed = job_of(fmt::format("ranks=3 zero=2 {}", GetParam()));
    int failures = 0;
    for (bool entered = false; !entered;) {
      try {
        trainer.enter(next_epoch(trainer.membership(), {1, 2, 3}, context.worker), placed.layout);
        entered = true;
      } catch (const Error& error) {
        expect(++failures == 1, error.what());
      }
    }
    expect(failures == 1, "no epoch failed");
    if (!trainer.membership().takes_part()) return;
    while (trainer.committed() < 8) trainer.step();
    const std::string text = ending(trainer);
    if (trainer.membership().rank == 0) hand_back(context, text);
  });
  EXPECT_EQ(end, never_changed(""));
}

TEST_P(Epochs, OneThatFailsWhileThereIsASpareIsFollowedByOneThatCallsItIn) {
  const Job job = job_of(fmt::format("ranks=4 zero=3 {}", GetParam()));
  const std::string end = run_of(job, [&](RankContext& context) {
    const Model model = make_model(job);
    int made = 0;
    const auto wrap = [&](std::unique_ptr<Transport> inner) {
      if (++made == 3 && context.worker == 1) throw Error("worker 1 has no connection");
      return inner;
    };
    Trainer trainer(job, model, context, "", {}, nullptr, wrap);
    const auto enter = [&](std::vector<int> members) {
      const Job placed = job_of(fmt::format("ranks={} {}", members.size(), GetParam()));
      trainer.enter(next_epoch(trainer.membership(), std::move(members), context.worker),
                    placed.layout);
    };
    for (int s = 0; s < 2; ++s) trainer.step();
    enter({0, 1, 2});
    for (int s = 0; s < 2 && trainer.membership().takes_part(); ++s) trainer.step();

    // Also the spare hears that nobody has begun: it goes on to the same epoch as the others.
    bool failed = false;
    try {
      enter({0, 1});
    } catch (const Error&) {
      failed = true;
    }
    expect(failed, "no epoch failed");
    enter({3, 0});
    while (trainer.membership().takes_part() && trainer.committed() < 8) trainer.step();
    if (!trainer.membership().takes_part()) return;
    const std::string text = ending(trainer);
    if (trainer.membership().rank == 0) hand_back(context, text);
  });
  EXPECT_EQ(end, never_changed(""));
}

TEST(Epochs, KeepTheKindOfWorkersThatTheRunBeganWith) {
  const Job job = job_of("ranks=2 workers=process transport=shm");
  const Job other = job_of("ranks=2 workers=thread transport=inproc");
  const std::string end = run_of(job, [&](RankContext& context) {
    const Model model = make_model(job);
    Trainer trainer(job, model, context, "");
    std::string refusal;
    try {
      trainer.enter(next_epoch(trainer.membership(), {0, 1}, context.worker), other.layout);
    } catch (const ConfigError& error) {
      refusal = error.what();
    }
    expect(refusal.find("layout.workers = \"thread\"") != std::string::npos, refusal);
    while (trainer.committed() < 8) trainer.step();
    const std::string text = ending(trainer);
    if (trainer.membership().rank == 0) hand_back(context, text);
  });
  EXPECT_EQ(end, never_changed(""));
}

TEST_P(Epochs, ARankThatIsCutBetweenStepsKeepsNobodyWaiting) {
  const Job job = job_of(fmt::format("ranks=4 {}", GetParam()));
  Cut* cut = shared_cut();
  cut->rank = 2;
  cut->channel = kMainChannel;
  cut->vote = 2;  // the first two calls there begin the epoch
  cut->told = false;
  const auto wrap = [cut](std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    return std::make_unique<CutTransport>(std::move(inner), *cut);
  };
  const std::string end = run_of(job, [&](RankContext& context) {
    const Model model = make_model(job);
    Trainer trainer(job, model, context, "", {}, nullptr, wrap);
    // The others may find out when they are still in the third step's last gathers.
    std::string reason;
    try {
      for (int s = 0; s < 3; ++s) trainer.step();
      trainer.agreed_hash();
    } catch (const CommError& error) {
      reason = error.what();
    }
    expect(!reason.empty() && reason.find("timed out") == std::string::npos,
           "nobody told the others: " + reason);

    const Job placed = job_of(fmt::format("ranks=3 {}", GetParam()));
    trainer.enter(next_epoch(trainer.membership(), {1, 3, 2}, context.worker), placed.layout);
    expect(trainer.committed() == 3, "a step was lost");
    while (trainer.membership().takes_part() && trainer.committed() < 8) trainer.step();
    if (!trainer.membership().takes_part()) return;
    const std::string text = ending(trainer);
    if (trainer.membership().rank == 0) hand_back(context, text);
  });
  EXPECT_EQ(cut->cuts.load(), 1);
  ::munmap(cut, sizeof(Cut));
  EXPECT_EQ(end, never_changed(""));
}

TEST_P(Epochs, WaitBetweenStepsForARankThatWorksLongerThanTheTimeOut) {
  const Job job = job_of(fmt::format("ranks=2 pipeline=2 timeout=1 {}", GetParam()));
  run_of(job, [&](RankContext& context) {
    const Model model = make_model(job);
    Trainer trainer(job, model, context, "");
    trainer.step();
    // The second stage waits for a message of the evaluation, then the first one for a sum after
    // it.
    if (context.rank == 0) work_for(std::chrono::milliseconds(1500), context.clock);
    trainer.evaluate();
    if (context.rank == 1) work_for(std::chrono::milliseconds(1500), context.clock);
    trainer.agreed_hash();
  });
}

TEST_P(Epochs, GiveUpARankThatDoesNothingBetweenSteps) {
  const Job job = job_of(fmt::format("ranks=2 timeout=1 {}", GetParam()));
  Cut* shared = shared_cut();
  const std::string reason = run_of(job, [&](RankContext& context) {
    const Model model = make_model(job);
    Trainer trainer(job, model, context, "");
    trainer.step();
    if (context.rank == 1) {
      Signal given_up;
      const auto seen = [&] { return shared->seen.load() != 0; };
      context.clock.wait(given_up, seen, context.clock.after(std::chrono::minutes(1)), nullptr);
      return;
    }
    try {
      trainer.agreed_hash();
    } catch (const CommError& error) {
      hand_back(context, error.what());
    }
    shared->seen.store(1);
  });
  EXPECT_NE(reason.find("timed out"), std::string::npos) << reason;
  ::munmap(shared, sizeof(Cut));
}

/// Takes 8 steps on 4 ranks, in the middle of which the connections of one rank break; `next` is
/// where it goes on.
std::string cut_in_the_middle(const std::string& settings, bool after, const Stretch& next) {
  const Job job = job_of("ranks=4 " + settings);
  Cut* cut = shared_cut();
  cut->rank = 2;
  // Clipping by units takes a second round of messages, without which the vote is not complete.
  const uint64_t rounds = job.train.clip_by == ClipBy::kUnit ? 2 : 1;
  cut->vote = after ? 4 * rounds - 1 : 3 * rounds;
  cut->after = after;
  const auto wrap = [cut](std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    return std::make_unique<CutTransport>(std::move(inner), *cut);
  };
  std::string end = run_of(job, [&](RankContext& context) {
    const Model model = make_model(job);
    Trainer trainer(job, model, context, "", {}, nullptr, wrap);
    bool cut_seen = false;
    while (!cut_seen) {
      try {
        trainer.step();
        expect(trainer.committed() < 6, "nothing was cut");
      } catch (const CommError&) {
        cut_seen = true;
      }
    }
    const Job placed = job_of(fmt::format("ranks={} {}", next.members.size(), next.layout));
    trainer.enter(next_epoch(trainer.membership(), next.members, context.worker), placed.layout);
    expect(trainer.committed() == (after ? 4 : 3),
           fmt::format("{} steps are committed", trainer.committed()));
    if (!trainer.membership().takes_part()) return;
    while (trainer.committed() < 8) trainer.step();
    const std::string text = ending(trainer);
    if (trainer.membership().rank == 0) hand_back(context, text);
  });
  EXPECT_EQ(cut->cuts.load(), 1);
  ::munmap(cut, sizeof(Cut));
  return end;
}

class CutEpochs : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    Over, CutEpochs,
    ::testing::Values("workers=thread transport=inproc zero=0", "transport=shm zero=0",
                      "transport=shm zero=1", "transport=shm zero=3",
                      "transport=tcp zero=0 workers=thread", "transport=tcp zero=2",
                      "transport=shm pipeline=2 zero=1 train.clip=0.5",
                      "transport=shm tensor=2 train.clip=0.01 train.clip_by=unit",
                      "transport=shm offload=optimizer zero=1"),
    [](const auto& info) {
      std::string name = info.param;
      std::replace_if(
          name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
      return name;
    });

/// What an epoch after a cut is run by: the workers stay what they are.
std::string workers_of(const std::string& settings) {
  return settings.find("workers=thread") == std::string::npos ? "transport=shm "
                                                              : "workers=thread transport=inproc ";
}

std::string job_keys(const std::string& settings) {
  std::string keys;
  std::istringstream words(settings);
  for (std::string word; words >> word;)
    if (word.starts_with("train.")) keys += word + " ";
  return keys;
}

TEST_P(CutEpochs, BeforeTheVoteTheStepIsTakenAgain) {
  const std::string keys = job_keys(GetParam());
  const std::string end =
      cut_in_the_middle(GetParam(), false, {{0, 1, 2}, keys + workers_of(GetParam()), 0});
  EXPECT_EQ(end, never_changed(keys));
}

TEST_P(CutEpochs, AfterTheVoteTheStepIsFinishedByAll) {
  const std::string keys = job_keys(GetParam());
  const std::string end = cut_in_the_middle(
      GetParam(), true, {{1, 2, 3, 0}, keys + workers_of(GetParam()) + "zero=2", 0});
  EXPECT_EQ(end, never_changed(keys));
}

}  // namespace
}  // namespace tutti
