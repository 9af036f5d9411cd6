// Meshes on devices without a GPU: on devices that are the host's own memory, with streams that run
// alongside each other, their steps give the bits of the host's engine on one rank, for every
// layout.
#include <gtest/gtest.h>

#include <atomic>
#include <sstream>

#include "support/command.h"
#include "support/device_jobs.h"
#include "support/device_ranks.h"
#include "support/stream_device.h"
#include "support/work_for.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

constexpr Duration kSoon = std::chrono::seconds(20);

/// "zero=3 pipeline=2 train.lanes=4": those without a section are of the layout.
std::vector<Setting> settings_of(const std::string& text) {
  std::vector<Setting> settings;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const size_t at = word.find('=');
    const std::string name = word.substr(0, at);
    settings.push_back(
        {name.find('.') == std::string::npos ? "layout." + name : name, word.substr(at + 1)});
  }
  return settings;
}

struct Outcome {
  std::string hash;
  uint64_t order = 0;
  std::vector<double> losses;
  double evaluated = 0;
  int64_t takes_in_steps = 0;
};

/// A job of so many ranks, ten steps and an evaluation; `on_device`: on streams of the host's
/// memory.
Outcome trained(const std::string& text, int ranks, const std::string& settings, bool on_device) {
  const Job job = device_job(text + "clip = 0.0\neval_batches = 1\n", ranks, settings_of(settings));
  Outcome outcome;
  const auto body = [&](Trainer& trainer, const RankContext& context, const StreamDevice* device) {
    Outcome mine;
    for (int i = 0; i < 2; ++i) mine.losses.push_back(trainer.step().loss);
    mine.evaluated = trainer.evaluate().loss();
    const int64_t takes = device != nullptr ? device->takes() : 0;
    for (int i = 2; i < 10; ++i) mine.losses.push_back(trainer.step().loss);
    mine.takes_in_steps = device != nullptr ? device->takes() - takes : 0;
    mine.hash = trainer.agreed_hash();
    mine.order = trainer.order_digest();
    if (context.rank == 0) outcome = mine;
  };
  if (on_device) {
    expect_ok(on_device_ranks(
        job, "",
        [&](DeviceRank& rank) {
          body(rank.trainer, rank.context, static_cast<const StreamDevice*>(&rank.device));
        },
        stream_library(), make_model, [] { return std::make_unique<StreamDevice>(); }));
    return outcome;
  }
  LaunchOptions launch;
  launch.ranks = ranks;
  launch.threads = true;
  expect_ok(launch_local(launch, [&](RankContext& context) {
    const Model model = make_model(job);
    Trainer trainer(job, model, context, "");
    body(trainer, context, nullptr);
  }));
  return outcome;
}

struct Case {
  std::string name;
  const char* job;
  std::string settings;              // what the job is
  std::vector<std::string> layouts;  // "RANKS SETTINGS"
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class DeviceMesh : public testing::TestWithParam<Case> {};

TEST_P(DeviceMesh, EveryLayoutGivesTheBitsOfOneRankOnTheHost) {
  const Outcome host = trained(GetParam().job, 1, GetParam().settings, false);
  ASSERT_EQ(host.hash.size(), 64u);
  for (const std::string& layout : GetParam().layouts) {
    SCOPED_TRACE(layout);
    const size_t space = layout.find(' ');
    const Outcome device = trained(GetParam().job, std::stoi(layout.substr(0, space)),
                                   GetParam().settings + layout.substr(space), true);
    EXPECT_EQ(device.hash, host.hash);
    EXPECT_EQ(device.order, host.order);
    EXPECT_EQ(device.evaluated, host.evaluated);
    EXPECT_EQ(device.takes_in_steps, 0);
    ASSERT_EQ(device.losses.size(), host.losses.size());
    for (size_t i = 0; i < host.losses.size(); ++i)
      EXPECT_NEAR(device.losses[i], host.losses[i], 1e-12);
  }
}

/// Clipping by the norm of the gradient: the sum of squares is of all ranks' slices.
TEST_P(DeviceMesh, ClippingDoesNotDependOnTheLayout) {
  for (const char* by : {"norm", "unit"}) {
    const std::string settings =
        GetParam().settings +
        " train.clip=0.01 train.optimizer=sgd train.clip_by=" + std::string(by) + " ";
    const Outcome one = trained(GetParam().job, 1, settings + " recompute=full", true);
    EXPECT_NE(one.hash, trained(GetParam().job, 1,
                                GetParam().settings + " train.optimizer=sgd recompute=full", true)
                            .hash);
    const std::string& layout = GetParam().layouts.back();
    const size_t space = layout.find(' ');
    EXPECT_EQ(trained(GetParam().job, std::stoi(layout.substr(0, space)),
                      settings + layout.substr(space), true)
                  .hash,
              one.hash)
        << by << ": " << layout;
  }
}

/// A checkpoint of a mesh is that of any other layout: it goes on where another one stopped.
TEST(DeviceMeshState, GoesOnFromTheCheckpointOfAnotherLayout) {
  TempFolder folder;
  const auto run = [&](int ranks, const std::string& settings, const std::string& from, int steps,
                       bool saves) {
    const Job job = device_job(kSmallGpt, ranks, settings_of("train.lanes=4 " + settings));
    std::string hash, path;
    expect_ok(on_device_ranks(
        job, from,
        [&](DeviceRank& rank) {
          for (int i = 0; i < steps; ++i) rank.trainer.step();
          const std::string mine = rank.trainer.agreed_hash();
          const std::string saved =
              saves ? rank.trainer.save({.folder = folder / "checkpoints"}) : "";
          if (rank.first()) hash = mine, path = saved;
        },
        stream_library(), make_model, [] { return std::make_unique<StreamDevice>(); }));
    return std::pair(hash, path);
  };
  const std::string straight = run(1, "", "", 4, false).first;
  const std::string half = run(4, "pipeline=2 zero=3", "", 2, true).second;
  EXPECT_EQ(run(2, "zero=1", half, 2, false).first, straight);
  EXPECT_EQ(run(4, "pipeline=4 schedule=zero-bubble", half, 2, false).first, straight);
}

/// On which nothing ends as long as another rank is busy, as if all of it needed that one.
class DependentDevice final : public StreamDevice {
 public:
  explicit DependentDevice(const std::atomic<bool>& busy) : busy_(busy) {}
  bool done(StreamEvent event) const override { return !busy_ && StreamDevice::done(event); }

 private:
  const std::atomic<bool>& busy_;
};

TEST(DeviceMeshState, WaitsInAnEvaluationForARankThatWorksLongerThanTheTimeOut) {
  const Job job = device_job(std::string(kSmallGpt) + "eval_batches = 1\n", 2,
                             settings_of("timeout=1 train.lanes=4"));
  std::atomic<bool> busy{false};
  const auto body = [&](DeviceRank& rank) {
    rank.trainer.step();
    const auto meet = [&] {
      rank.context.rendezvous.exchange({}, rank.context.clock.after(kSoon));
    };
    meet();
    if (rank.first()) busy = true;
    meet();
    if (rank.first()) work_for(std::chrono::milliseconds(1500), rank.context.clock);
    if (rank.first()) busy = false;
    rank.trainer.evaluate();
  };
  expect_ok(on_device_ranks(job, "", body, stream_library(), make_model,
                            [&] { return std::make_unique<DependentDevice>(busy); }));
}

/// A step that is not finite is repeated to name its place: where ranks idle, too.
TEST(DeviceMeshState, ALossThatIsNotFiniteIsNamedAsOnTheHost) {
  const auto failure = [](int ranks, const std::string& settings, bool on_device) {
    const std::string diverging =
        "train.optimizer=sgd train.lr=1e6 train.clip=0 train.schedule=constant ";
    const Job job = device_job(kSmallGpt, ranks, settings_of(diverging + settings));
    const auto all_steps = [](Trainer& trainer) {
      for (int i = 0; i < 20; ++i) trainer.step();
    };
    if (on_device) {
      const LaunchResult device = on_device_ranks(
          job, "", [&](DeviceRank& rank) { all_steps(rank.trainer); }, stream_library(), make_model,
          [] { return std::make_unique<StreamDevice>(); });
      return device.failures.empty() ? "" : device.failures[0];
    }
    LaunchOptions launch;
    launch.ranks = ranks;
    launch.threads = true;
    const LaunchResult host = launch_local(launch, [&](RankContext& context) {
      const Model model = make_model(job);
      Trainer trainer(job, model, context, "");
      all_steps(trainer);
    });
    return host.failures.empty() ? "" : host.failures[0];
  };
  const std::string host = failure(1, "", false);
  EXPECT_NE(host.find("the first block with a non-finite output is "), std::string::npos) << host;
  for (const auto& [ranks, layout] :
       {std::pair{3, "zero=3"}, {2, "pipeline=2"}, {4, "pipeline=2 zero=3"}})
    EXPECT_EQ(failure(ranks, layout, true), host) << layout;
}

TEST(DeviceMeshForecast, IsWhatARankTakes) {
  for (const char* settings :
       {"zero=3", "pipeline=2", "zero=1 recompute=full", "zero=2 offload=optimizer"}) {
    const Job job = device_job(kLargerGpt, 2, settings_of(settings));
    expect_ok(on_device_ranks(
        job, "",
        [&](DeviceRank& rank) {
          rank.trainer.step();
          const auto& device = static_cast<const StreamDevice&>(rank.device);
          const auto taken = static_cast<double>(device.held_bytes());
          // What the libraries of a GPU take besides, this device does not.
          const DeviceForecast& all = rank.trainer.device_forecast();
          const auto forecast = static_cast<double>(all.total() - all.libraries);
          EXPECT_GT(forecast, 0.9 * taken) << settings;
          EXPECT_LT(forecast, 1.3 * taken + (2 << 20)) << settings;
        },
        stream_library(), make_model, [] { return std::make_unique<StreamDevice>(); }));
  }
}

const std::vector<Case> kCases = {
    {"Zero",
     kSmallGpt,
     "",
     {"1 zero=3", "2 zero=0 recompute=full", "2 zero=1", "2 zero=2 overlap=false", "3 zero=1",
      "5 zero=2", "5 zero=3", "4 zero=1 shards=2", "4 zero=2 shards=2", "3 zero=3",
      "4 zero=3 shards=2 recompute=full", "4 pipeline=2 zero=3"}},
    {"ZeroOfLanesThatDivide",
     kSmallGpt,
     "train.lanes=4",
     {"2 zero=3", "4 zero=3 depth=3", "4 zero=3 shards=2 recompute=selective",
      "4 zero=3 shards=2 hosts=2", "4 zero=3 hosts=2", "4 zero=1 hosts=2 overlap=false",
      "4 zero=0 recompute=full hosts=2", "4 zero=3 overlap=false recompute=full"}},
    {"Pipeline",
     kSmallGpt,
     "model.tied=false",
     {"2 pipeline=2 schedule=gpipe", "2 pipeline=2", "2 pipeline=2 schedule=interleaved",
      "3 pipeline=3", "2 pipeline=2 schedule=zero-bubble", "2 pipeline=2 schedule=zbv",
      "2 pipeline=2 schedule=zbv in_flight=4"}},
    {"TiedPipeline",
     kSmallGpt,
     "model.layers=4",
     {"2 pipeline=2", "4 pipeline=4 schedule=zero-bubble", "3 pipeline=3 schedule=interleaved",
      "2 pipeline=2 schedule=zbv", "4 pipeline=2 schedule=zbv zero=1", "5 pipeline=5"}},
    {"Hybrids",
     kSmallGpt,
     "train.lanes=4",
     {"4 pipeline=2 zero=3", "4 pipeline=2 zero=2 schedule=interleaved recompute=full",
      "4 pipeline=2 overlap=false"}},
    {"Offload",
     kSmallGpt,
     "train.lanes=4",
     {"1 offload=optimizer", "1 offload=all", "1 offload=all overlap=false recompute=full",
      "2 offload=optimizer", "2 offload=optimizer zero=1", "4 offload=optimizer zero=3",
      "4 offload=optimizer pipeline=2 zero=2"}},
    {"OffloadOverStages",
     kSmallGpt,
     "model.tied=false",
     {"2 offload=all pipeline=2", "2 offload=all pipeline=2 schedule=zbv",
      "2 offload=optimizer pipeline=2"}},
    {"Columns",
     kSmallGpt,
     "train.tensor_slices=2 train.lanes=4",
     {"1 zero=0", "2 tensor=2", "2 tensor=2 overlap=false recompute=selective", "2 zero=3",
      "4 tensor=2 zero=2", "4 tensor=2 pipeline=2 schedule=zero-bubble",
      "4 tensor=2 zero=3 recompute=full"}},
    {"FourColumns",
     kSmallGpt,
     "train.tensor_slices=4 model.heads=4 train.lanes=4",
     {"2 tensor=2", "3 tensor=3", "4 tensor=4"}},
    {"Rounds",
     kSmallGpt,
     "numerics.order=micro train.lanes=4",
     {"1 zero=0", "2 zero=0", "4 zero=2 fold=owner", "4 zero=3 fold=owner shards=2",
      "3 zero=1 fold=owner", "4 pipeline=2 zero=3 schedule=gpipe"}},
    {"MlpWithBuffers",
     kSmallMlp,
     "train.micro_batches=1",
     {"3 fold=owner", "3 zero=2 fold=owner", "2 pipeline=2 recompute=full", "5 zero=1",
      "5 zero=1 offload=optimizer"}},
};

INSTANTIATE_TEST_SUITE_P(Of, DeviceMesh, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti
