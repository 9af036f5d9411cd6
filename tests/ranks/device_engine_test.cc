// The device engine without a GPU: on devices that are the host's own memory its steps give the
// bits of the host's engine, for every number of ranks.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "config/model_rules.h"
#include "engine/device/kind.h"
#include "launch/local.h"
#include "model/make_model.h"
#include "state/manifest.h"
#include "support/command.h"
#include "support/device_jobs.h"
#include "support/device_ranks.h"
#include "support/host_library.h"
#include "train/trainer.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

struct Outcome {
  std::string hash;
  uint64_t order = 0;
  std::vector<double> losses;
  std::string alongside;  // hash of the state that was copied out after step 2
  int64_t takes_in_steps = 0;
};

Outcome trained(const char* text, int ranks, bool on_device,
                const std::vector<Setting>& settings = {}, int64_t steps = 4) {
  std::string lines = std::string(text) + "clip = 0.0\n";
  if (text == kSmallMlp) lines += "groups = [\"layers.0* lr=0.5\"]\n";
  Job job = parse_job(lines, "job", settings);
  const bool prefetch = job.layout.prefetch;  // a job of the CPU may not say it
  job.layout.prefetch = true;
  job.origin.erase("layout.prefetch");
  job.numerics.device = DeviceKind::kCpu;
  job.layout.workers = Workers::kThread;
  job.layout.ranks = ranks;
  job.layout.zero = 0;  // as it is on a GPU
  resolve(job, this_machine(), {});
  job.layout.prefetch = prefetch;
  Outcome outcome;
  const TempFolder folder;
  LaunchOptions launch;
  launch.ranks = ranks;
  launch.threads = true;
  const LaunchResult result = launch_local(launch, [&](RankContext& context) {
    RankDevice device;
    HostDevice* host = nullptr;
    if (on_device) {
      auto own = std::make_unique<HostDevice>(int64_t{1} << 40);
      host = own.get();
      device.library = &host_library();
      device.device = std::move(own);
      device.compute = device.device->make_stream();
    }
    const Model model = make_model(job);
    Trainer trainer(job, model, context, "", {}, &device);
    std::vector<double> losses;
    losses.push_back(trainer.step().loss);
    const int64_t takes = host != nullptr ? host->takes() : 0;
    for (int64_t step = 1; step < steps; ++step) {
      losses.push_back(trainer.step().loss);
      if (step == 1) trainer.begin_save({.folder = folder.path()});
    }
    const std::string alongside = read_manifest(trainer.end_save()).state_sha256;
    const std::string hash = trainer.agreed_hash();
    const uint64_t order = trainer.order_digest();
    if (context.rank != 0) return;
    outcome = {hash, order, losses, alongside, host != nullptr ? host->takes() - takes : 0};
  });
  for (const std::string& failure : result.failures) ADD_FAILURE() << failure;
  return outcome;
}

class DeviceEngine : public testing::TestWithParam<const char*> {};

TEST_P(DeviceEngine, EveryNumberOfRanksGivesTheHostEnginesBits) {
  const Outcome host = trained(GetParam(), 1, false);
  for (int ranks : {1, 2, 3, 5}) {
    const Outcome device = trained(GetParam(), ranks, true);
    EXPECT_EQ(device.hash, host.hash) << ranks << " ranks";
    EXPECT_EQ(device.order, host.order) << ranks << " ranks";
    for (size_t i = 0; i < host.losses.size(); ++i)
      EXPECT_NEAR(device.losses[i], host.losses[i], 1e-12);
  }
}

TEST_P(DeviceEngine, ClippingByNormAndByUnitDoesNotDependOnTheRanks) {
  for (const char* by : {"norm", "unit", "value"}) {
    const std::vector<Setting> settings{{"train.clip", "0.01"}, {"train.clip_by", by}};
    const Outcome one = trained(GetParam(), 1, true, settings), none = trained(GetParam(), 1, true);
    EXPECT_NE(one.hash, none.hash) << by << " clips nothing";
    for (int ranks : {2, 4})
      EXPECT_EQ(trained(GetParam(), ranks, true, settings).hash, one.hash) << by;
  }
}

TEST_P(DeviceEngine, EveryOptimizerGivesTheHostEnginesBits) {
  for (const char* optimizer : {"sgd", "adagrad", "rmsprop", "adam", "lion"}) {
    std::vector<Setting> settings{{"train.optimizer", optimizer}};
    if (std::string(optimizer) == "sgd") settings.push_back({"train.momentum", "0.9"});
    EXPECT_EQ(trained(GetParam(), 2, true, settings).hash,
              trained(GetParam(), 1, false, settings).hash)
        << optimizer;
  }
}

TEST_P(DeviceEngine, PrefetchAndBucketsAndFoldChangeNothing) {
  const Outcome with = trained(GetParam(), 2, true);
  for (const std::vector<Setting>& settings : {std::vector<Setting>{{"layout.prefetch", "false"}},
                                               {{"layout.bucket_floats", "100"}},
                                               {{"layout.fold", "root"}},
                                               {{"layout.overlap", "false"}}}) {
    const Outcome other = trained(GetParam(), 2, true, settings);
    EXPECT_EQ(other.hash, with.hash) << settings[0].key;
    EXPECT_EQ(other.order, with.order) << settings[0].key;
  }
}

TEST_P(DeviceEngine, AStateCopiedBesideTheStepsIsTheOneAfterThatStep) {
  const Outcome long_run = trained(GetParam(), 2, true);
  const Outcome short_run = trained(GetParam(), 2, true, {}, 2);
  EXPECT_EQ(long_run.alongside, short_run.hash);
  EXPECT_NE(long_run.alongside, long_run.hash);
}

TEST_P(DeviceEngine, ASteadyStepTakesNoMemoryOfTheDevice) {
  EXPECT_EQ(trained(GetParam(), 2, true).takes_in_steps, 0);
}

std::atomic<int> aborted{0};

/// Counts the groups that were aborted.
class CountingGroup final : public DeviceGroup {
 public:
  explicit CountingGroup(std::unique_ptr<DeviceGroup> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void exchange(Stream stream, std::span<const DeviceSend> sends,
                std::span<const DeviceReceive> receives) override {
    inner_->exchange(stream, sends, receives);
  }
  void sum(Stream stream, double* values, int64_t n) override { inner_->sum(stream, values, n); }
  void sum(Stream stream, float* values, int64_t n) override { inner_->sum(stream, values, n); }
  std::string fault() override { return inner_->fault(); }
  void abort() override { ++aborted; }

 private:
  std::unique_ptr<DeviceGroup> inner_;
};

TEST(DeviceEngineEnd, ByAFailureAbortsTheGroupAndByTheLastStepDoesNot) {
  DeviceLibrary library = host_library();
  library.join = [](Device& device, const GroupOptions& options, Clock& clock, Deadline deadline,
                    const Cancel* cancel) -> std::unique_ptr<DeviceGroup> {
    return std::make_unique<CountingGroup>(
        host_library().join(device, options, clock, deadline, cancel));
  };
  for (const bool fails : {false, true}) {
    aborted = 0;
    const LaunchResult result = on_device_ranks(
        device_job(kSmallMlp, 2), "",
        [&](DeviceRank& rank) {
          rank.trainer.step();
          if (fails) throw Error("the disk is full");
        },
        library);
    EXPECT_EQ(result.ok(), !fails);
    EXPECT_EQ(aborted, fails ? 2 : 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceEngine, testing::Values(kSmallGpt, kSmallMlp),
                         [](const auto& info) {
                           return std::string(info.param == kSmallGpt ? "Gpt" : "Mlp");
                         });

}  // namespace
}  // namespace tutti
