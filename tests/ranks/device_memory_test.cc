// What ranks take of their devices is what was forecast, and what does not fit is refused by the
// forecast, on all ranks alike, before anything is taken.
#include <atomic>

#include "base/error.h"
#include "engine/device/kind.h"
#include "support/device_jobs.h"
#include "support/device_ranks.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;
/// What the forecast leaves to the libraries' share: the engine's tables have some bytes for a
/// chunk of parameters.
constexpr int64_t kTables = 16384;

struct Held {
  DeviceForecast forecast;
  int64_t bytes = 0, messages = 0, input = 0;
  std::string parts;
};

/// Forecast and truth of every rank after a few steps.
std::vector<Held> held(const char* text, int ranks, const std::vector<Setting>& settings) {
  const Job job = device_job(text, ranks, settings);
  std::vector<Held> found(static_cast<size_t>(ranks));
  expect_ok(on_device_ranks(job, "", [&](DeviceRank& rank) {
    Trainer& trainer = rank.trainer;
    const RankContext& context = rank.context;
    const auto& host = dynamic_cast<const HostDevice&>(rank.device);
    for (int step = 0; step < 3; ++step) trainer.step();
    Held& mine = found[static_cast<size_t>(context.rank)];
    mine.forecast = trainer.device_forecast();
    mine.bytes = host.held_bytes();
    mine.messages = trainer.accounts().current(BufferKind::kMessage);
    mine.input = trainer.accounts().current(BufferKind::kData);
    for (int k = 0; k < kBufferKinds; ++k)
      mine.parts += fmt::format("{} forecast {} held {}; ", kind_name(static_cast<BufferKind>(k)),
                                mine.forecast.plan.bytes[k],
                                trainer.accounts().current(static_cast<BufferKind>(k)));
    mine.parts += fmt::format("forecast low {} messages {} input {} captured {}", mine.forecast.low,
                              mine.forecast.messages, mine.forecast.input, mine.forecast.captured);
  }));
  return found;
}

TEST(DeviceMemory, WhatARankTakesWasForecast) {
  for (const char* text : {kLargerGpt, kLargerMlp})
    for (int ranks = 1; ranks <= 4; ++ranks)
      for (const char* bucket : {"1", "1000000"}) {
        const auto all = held(text, ranks, {{"layout.bucket_floats", bucket}});
        for (size_t r = 0; r < all.size(); ++r) {
          const int64_t forecast = all[r].forecast.total() - all[r].forecast.libraries;
          const std::string where =
              fmt::format("{} rank {} of {}, bucket {}: forecast {} held {}; {}",
                          text == kLargerGpt ? "gpt" : "mlp", r, ranks, bucket, forecast,
                          all[r].bytes, all[r].parts);
          EXPECT_GE(forecast + kTables, all[r].bytes) << where;
          EXPECT_LE(static_cast<double>(forecast), 1.3 * static_cast<double>(all[r].bytes))
              << where;
          EXPECT_EQ(all[r].forecast.messages, all[r].messages) << where;
          const int64_t slots = all[r].forecast.plan.bytes[static_cast<int>(BufferKind::kData)];
          EXPECT_EQ(all[r].forecast.input + slots, all[r].input) << where;
        }
      }
}

TEST(DeviceMemory, TooLittleIsRefusedBeforeAnythingIsTakenAndByAllRanksAlike) {
  for (int ranks : {1, 4}) {
    const Job job = device_job(kLargerMlp, ranks);
    // Enough for one rank and its libraries, not for four.
    for (const int64_t total : {ranks * int64_t{1} << 31, int64_t{1} << 31, int64_t{1} << 28}) {
      const bool enough = total >= ranks * int64_t{1} << 31;
      std::vector<int64_t> held_at_refusal(static_cast<size_t>(ranks), -1);
      std::atomic<int> trained{0};
      LaunchOptions launch;
      launch.ranks = ranks;
      launch.threads = true;
      const LaunchResult result = launch_local(launch, [&](RankContext& context) {
        auto own = std::make_unique<HostDevice>(total);
        const HostDevice& host = *own;
        RankDevice device{&host_library(), std::move(own)};
        const Model model = make_model(job);
        try {
          Trainer trainer(job, model, context, "", {}, &device);
          trainer.step();
          ++trained;
        } catch (const ConfigError&) {
          held_at_refusal[static_cast<size_t>(context.rank)] = host.held_bytes();
          throw;
        }
      });
      EXPECT_EQ(result.ok(), enough) << ranks << " ranks, " << total / kMiB << " MiB";
      EXPECT_EQ(trained, enough ? ranks : 0) << ranks << " ranks, " << total / kMiB << " MiB";
      if (enough) continue;
      for (int r = 0; r < ranks; ++r)
        EXPECT_EQ(held_at_refusal[static_cast<size_t>(r)], 0) << "rank " << r;
      ASSERT_FALSE(result.failures.empty());
      EXPECT_NE(result.failures[0].find("libraries"), std::string::npos) << result.failures[0];
      EXPECT_NE(result.failures[0].find("of host, which has"), std::string::npos)
          << result.failures[0];
      EXPECT_EQ(result.failures[0].find("4 ranks of") != std::string::npos, ranks == 4)
          << result.failures[0];
    }
  }
}

/// The host's memory, of which a pool takes its share. Every pass of the dry run finds a GiB in the
/// pool, kept or not.
class PooledDevice final : public Device {
 public:
  explicit PooledDevice(int64_t total) : host_(total) {}
  void reserve_pool(int64_t bytes) override {
    if (bytes > host_.free_bytes()) throw Error("the device itself refuses the pool");
    reserved_ = bytes;
  }
  PoolUse pool() const override {
    return {.reserved = reserved_, .current = current_, .peak = current_};
  }
  void reset_pool_peak() override { current_ += kGiB; }
  int64_t free_bytes() const override { return host_.free_bytes() - reserved_; }

  const DeviceInfo& info() const override { return host_.info(); }
  std::span<std::byte> take(BufferKind kind, size_t bytes) override {
    return host_.take(kind, bytes);
  }
  void give_back(std::span<std::byte> memory) override { host_.give_back(memory); }
  std::span<std::byte> take_pinned(size_t bytes) override { return host_.take_pinned(bytes); }
  void give_back_pinned(std::span<std::byte> memory) override { host_.give_back_pinned(memory); }
  Stream make_stream() override { return host_.make_stream(); }
  void copy(Stream stream, void* to, const void* from, size_t bytes) override {
    host_.copy(stream, to, from, bytes);
  }
  void zero(Stream stream, void* memory, size_t bytes) override {
    host_.zero(stream, memory, bytes);
  }
  void make_current(Stream) override {}
  StreamEvent make_event(bool timed) override { return host_.make_event(timed); }
  void record(StreamEvent event, Stream stream) override { host_.record(event, stream); }
  void wait(Stream, StreamEvent, bool) override {}
  bool done(StreamEvent) const override { return true; }
  double seconds(StreamEvent from, StreamEvent to) const override {
    return host_.seconds(from, to);
  }
  void synchronise(Stream) override {}
  bool captures() const override { return false; }
  void begin_capture(Stream) override {}
  CapturedStep end_capture(Stream) override { return {}; }
  void launch(const CapturedStep&, Stream) override {}
  void destroy(CapturedStep) override {}

 private:
  HostDevice host_;
  int64_t reserved_ = 0, current_ = 0;
};

TEST(DeviceMemory, APoolThatDoesNotFitIsRefusedByTheForecastNotByTheDevice) {
  const Job job = device_job(kLargerMlp, 1);
  for (const auto& [gib, enough] : {std::pair{64, true}, {4, false}}) {
    LaunchOptions launch;
    launch.threads = true;
    const LaunchResult result = launch_local(launch, [&, gib = gib](RankContext& context) {
      RankDevice device{&host_library(), std::make_unique<PooledDevice>(gib * kGiB)};
      const Model model = make_model(job);
      Trainer(job, model, context, "", {}, &device).step();
    });
    EXPECT_EQ(result.ok(), enough) << (result.ok() ? "" : result.failures[0]);
    if (result.ok()) continue;
    EXPECT_NE(result.failures[0].find("saved 4 GiB"), std::string::npos) << result.failures[0];
  }
}

}  // namespace
}  // namespace tutti
