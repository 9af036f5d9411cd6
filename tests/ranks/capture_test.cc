// That a step may be captured, without a GPU: a device that watches over its captures finds no
// fault in the third step of a run, which is the first that is captured, and it gives the bits of
// one that is not.
#include <mutex>

#include "base/error.h"
#include "engine/device/device_backend.h"
#include "support/capturing_device.h"
#include "support/command.h"
#include "support/device_jobs.h"
#include "support/device_ranks.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

/// What the ranks' devices say of a run of three steps.
struct Watched {
  std::vector<std::string> faults;
  std::string hash, failure;
  int captured = 0, launched = 0;
};

Watched watched(const Job& job, const std::function<Model(const Job&)>& make = make_model,
                bool copies = false) {
  Watched all;
  std::mutex mutex;
  // Every rank's device has its own list, joined here when the rank is done.
  std::vector<std::unique_ptr<std::vector<std::string>>> lists;
  const TempFolder folder;
  const LaunchResult result = on_device_ranks(
      job, "",
      [&](DeviceRank& rank) {
        for (int step = 0; step < 3; ++step) {
          rank.trainer.step();
          if (!copies) continue;
          if (step > 0) rank.trainer.end_save();
          rank.trainer.begin_save({.folder = folder.path()});
        }
        const std::string hash = rank.trainer.agreed_hash();
        const auto& device = dynamic_cast<const CapturingDevice&>(rank.device);
        const std::lock_guard lock(mutex);
        all.captured += device.captured();
        all.launched += device.launched();
        all.hash = hash;
      },
      host_library(), make,
      [&]() -> std::unique_ptr<Device> {
        const std::lock_guard lock(mutex);
        return std::make_unique<CapturingDevice>(
            *lists.emplace_back(std::make_unique<std::vector<std::string>>()));
      });
  for (const auto& list : lists) all.faults.insert(all.faults.end(), list->begin(), list->end());
  if (!result.ok()) all.failure = result.failures[0];
  return all;
}

Job graph_job(const char* text, int ranks, std::vector<Setting> settings = {}) {
  if (text == kSmallGpt) settings.push_back({"model.dropout", "0.1"});
  Job job = device_job(text, ranks, settings);
  job.layout.graph = true;
  return job;
}

std::string plain_hash(Job job) {
  job.layout.graph = false;
  const Watched run = watched(job);
  EXPECT_EQ(run.failure, "");
  EXPECT_EQ(run.captured, 0) << "layout.graph = false";
  return run.hash;
}

class Capture : public testing::TestWithParam<const char*> {};

TEST_P(Capture, OfAStepFindsNoFaultAndGivesTheSameBits) {
  for (int ranks : {1, 2, 3})
    for (const std::vector<Setting>& settings :
         {std::vector<Setting>{},
          {{"layout.bucket_floats", "100"}},
          {{"layout.overlap", "false"}},
          {{"layout.fold", "root"}},
          {{"train.optimizer", "lamb"}},
          {{"train.clip", "0.01"}, {"train.clip_by", "unit"}}}) {
      const Job job = graph_job(GetParam(), ranks, settings);
      const Watched run = watched(job);
      const std::string where =
          fmt::format("{} ranks, {}", ranks, settings.empty() ? "" : settings[0].key);
      ASSERT_EQ(run.failure, "") << where;
      EXPECT_EQ(run.captured, ranks) << where;
      EXPECT_EQ(run.launched, ranks) << where;
      EXPECT_EQ(run.faults, std::vector<std::string>{}) << where;
      EXPECT_EQ(run.hash, plain_hash(job)) << where;
    }
}

TEST_P(Capture, OfAStepInSlicesFindsNoFaultAndGivesTheSameBits) {
  for (const std::vector<Setting>& settings : {std::vector<Setting>{{"layout.zero", "1"}},
                                               {{"layout.zero", "2"}, {"layout.overlap", "false"}},
                                               {{"layout.zero", "3"}, {"train.lanes", "4"}},
                                               {{"layout.recompute", "full"}}}) {
    const Job job = graph_job(GetParam(), 2, settings);
    const Watched run = watched(job);
    ASSERT_EQ(run.failure, "") << settings[0].key;
    EXPECT_EQ(run.captured, 2) << settings[0].key;
    EXPECT_EQ(run.launched, 2) << settings[0].key;
    EXPECT_EQ(run.faults, std::vector<std::string>{}) << settings[0].key;
    EXPECT_EQ(run.hash, plain_hash(job)) << settings[0].key;
  }
}

TEST_P(Capture, IsNotTriedWhereRanksWaitForEachOtherInsideOfAStep) {
  Job job = graph_job(GetParam(), 2);
  const Model model = make_model(job);
  EXPECT_TRUE(capture_faults(model, job.layout).empty());
  job.layout.pipeline = 2, job.layout.tensor = 2;
  EXPECT_EQ(capture_faults(model, job.layout),
            (std::vector<std::string>{"stages of a pipeline wait for each other inside of a step",
                                      "tensor ranks wait for each other inside of a step"}));
}

TEST_P(Capture, WaitsForACopyOfTheStateThatIsUnderWay) {
  const Watched run = watched(graph_job(GetParam(), 2), make_model, /*copies=*/true);
  ASSERT_EQ(run.failure, "");
  EXPECT_EQ(run.faults, std::vector<std::string>{});
}

INSTANTIATE_TEST_SUITE_P(Models, Capture, testing::Values(kSmallGpt, kSmallMlp),
                         [](const auto& info) {
                           return std::string(info.param == kSmallGpt ? "Gpt" : "Mlp");
                         });

/// Passes everything on, but says that it cannot be captured.
class Uncapturable final : public Segment {
 public:
  explicit Uncapturable(std::unique_ptr<Segment> inner) : inner_(std::move(inner)) {}
  std::string name() const override { return inner_->name(); }
  std::vector<Border> inputs() const override { return inner_->inputs(); }
  std::vector<Border> outputs() const override { return inner_->outputs(); }
  int64_t saved_bytes() const override { return inner_->saved_bytes(); }
  int64_t work_bytes() const override { return inner_->work_bytes(); }
  bool captures() const override { return false; }
  void forward(Context& context, Tensors in, Tensors out) const override {
    inner_->forward(context, in, out);
  }
  void backward(Context& context, Tensors in, Tensors out, Tensors grad_out,
                Tensors grad_in) const override {
    inner_->backward(context, in, out, grad_out, grad_in);
  }

 private:
  std::unique_ptr<Segment> inner_;
};

TEST(CaptureRefusal, AModelThatCannotBeCapturedTrainsWithout) {
  const Job job = graph_job(kSmallMlp, 2);
  const Watched run = watched(job, [](const Job& j) {
    Model model = make_model(j);
    auto& segment = model.blocks[1].segments[0];
    segment = std::make_unique<Uncapturable>(std::move(segment));
    return model;
  });
  ASSERT_EQ(run.failure, "");
  EXPECT_EQ(run.captured, 0);
  EXPECT_EQ(run.hash, plain_hash(job));
}

/// The failure of a run in whose first capture a segment throws.
std::string failure_in_capture(const std::function<void()>& thrown) {
  const auto calls = std::make_shared<int>(0);
  // On the host's memory a micro-batch is checked twice: when it is brought and when it is used.
  // The prefetch of the third step is over before its first use.
  return watched(graph_job(kSmallMlp, 1),
                 [&](const Job& j) {
                   Model model = make_model(j);
                   model.check = [calls, thrown](Tensors) {
                     if (++*calls == 5 * 2 * (3 + 2) + 1) thrown();
                   };
                   return model;
                 })
      .failure;
}

TEST(CaptureRefusal, AStepThatFailsInItsCaptureSaysHowToDoWithout) {
  const std::string failure = failure_in_capture([] { throw Error("a segment that waits"); });
  EXPECT_NE(failure.find("could not be captured (a segment that waits)"), std::string::npos)
      << failure;
  EXPECT_NE(failure.find("layout.graph = false"), std::string::npos) << failure;
}

TEST(CaptureRefusal, APeerThatIsLostInACaptureIsNoFaultOfTheCapture) {
  const std::string failure = failure_in_capture([] {
    throw CommError({.rank = 0, .operation = "an exchange", .reason = "its peer is gone"});
  });
  EXPECT_NE(failure.find("its peer is gone"), std::string::npos) << failure;
  EXPECT_EQ(failure.find("captured"), std::string::npos) << failure;
}

TEST(CapturingDevice, FindsWhatMayNotBeCaptured) {
  std::vector<std::string> faults;
  CapturingDevice device(faults);
  const Stream first = device.make_stream(), other = device.make_stream(),
               foreign = device.make_stream();
  const StreamEvent begun = device.make_event(false), old = device.make_event(false);
  const auto memory = device.take(BufferKind::kWork, 256);
  device.record(old, foreign);
  device.make_current(first);
  device.begin_capture(first);
  device.record(begun, first);
  device.wait(other, begun, false);
  device.zero(other, memory.data(), 256);
  device.wait(first, old, true);
  EXPECT_EQ(faults, std::vector<std::string>{});
  const auto expect = [&](const char* what, const std::function<void()>& call) {
    faults.clear();
    call();
    ASSERT_FALSE(faults.empty()) << what;
    EXPECT_NE(faults[0].find(what), std::string::npos) << faults[0];
  };
  std::byte stack[4];
  expect("not pinned", [&] { device.copy(first, memory.data(), stack, 4); });
  expect("not in the capture", [&] { device.zero(foreign, memory.data(), 4); });
  expect("from outside", [&] { device.wait(first, old, false); });
  expect("the host waits", [&] { device.synchronise(first); });
  expect("is asked for", [&] { device.done(begun); });
  expect("is taken", [&] { device.take(BufferKind::kWork, 4); });
  expect("does not come back", [&] { device.end_capture(first); });
}

}  // namespace
}  // namespace tutti
