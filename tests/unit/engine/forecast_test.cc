// What a rank will take of its device: by hand for a small model, and what is said when there is
// not enough of it. And which models' steps can be captured. (tests/ranks/device_memory_test.cc has
// what ranks then take.)
#include "engine/device/forecast.h"

#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "config/model_rules.h"
#include "engine/device/kind.h"
#include "engine/program_memory.h"
#include "model/gpt/gpt.h"
#include "model/make_model.h"
#include "plan/make/plan_mesh.h"
#include "support/device_jobs.h"

namespace tutti {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

Job resolved(const std::string& text, const std::vector<Setting>& settings = {}) {
  Job job = parse_job(text, "job", settings);
  job.numerics.device = DeviceKind::kCpu;
  job.layout.workers = Workers::kThread;
  resolve(job, this_machine(), {});
  return job;
}

/// Borders and bytes; it is never run.
class Described final : public Segment {
 public:
  Described(std::string name, std::vector<Border> in, std::vector<Border> out)
      : name_(std::move(name)), in_(std::move(in)), out_(std::move(out)) {}
  std::string name() const override { return name_; }
  std::vector<Border> inputs() const override { return in_; }
  std::vector<Border> outputs() const override { return out_; }
  int64_t saved_bytes() const override { return saved; }
  int64_t work_bytes() const override { return work; }
  bool draws() const override { return draws_torch; }
  bool captures() const override { return can_capture; }
  void forward(Context&, Tensors, Tensors) const override { throw Error("it is never run"); }
  void backward(Context&, Tensors, Tensors, Tensors, Tensors) const override {
    throw Error("it is never run");
  }

  int64_t saved = 0, work = 0;
  bool draws_torch = false, can_capture = true;

 private:
  std::string name_;
  std::vector<Border> in_, out_;
};

constexpr int64_t kRows = 5;

/// "a": w [4, 8], x -> h; "b": w [8, 100], h -> logits -> loss. Unit sizes are 64 and 832 floats
/// with their padding.
Model described(
    const std::function<void(Described& wide, Described& narrow, Described& end)>& with = {}) {
  const Border x{"x", {kRows, 4}}, h{"h", {kRows, 8}}, logits{"logits", {kRows, 100}};
  const Border targets{"targets", {kRows}, at::kLong}, loss{"loss", {2}, at::kDouble};
  auto wide = std::make_unique<Described>("wide", std::vector{x}, std::vector{h});
  auto narrow = std::make_unique<Described>("narrow", std::vector{h}, std::vector{logits});
  auto end = std::make_unique<Described>("end", std::vector{logits, targets}, std::vector{loss});
  wide->saved = 1000, narrow->saved = 2000;
  wide->work = 300, end->work = 700;
  if (with) with(*wide, *narrow, *end);
  Model model;
  model.data = {x, targets};
  model.blocks.resize(2);
  model.blocks[0].name = "a";
  model.blocks[0].parameters = {{"w", {4, 8}, {}, {}}};
  model.blocks[0].segments.push_back(std::move(wide));
  model.blocks[1].name = "b";
  model.blocks[1].parameters = {{"w", {8, 100}, {}, {}}};
  model.blocks[1].segments.push_back(std::move(narrow));
  model.blocks[1].segments.push_back(std::move(end));
  return model;
}

Job small_job(int64_t ranks, int64_t lanes, int64_t micro_batches) {
  Job job = parse_job("", "job", {});
  job.layout.ranks = ranks;
  job.layout.hosts = 1;
  job.layout.graph = true;
  job.train.lanes = lanes;
  job.train.micro_batches = micro_batches;
  job.numerics.precision = Precision::kFloat32;
  return job;
}

DeviceForecast forecast_of(const Job& job, const Model& model, const ModelShape& shape,
                           int rank = 0, int slots = 2) {
  MeshOptions options;
  options.mesh = {static_cast<int>(job.layout.ranks), 1, 1, 1};
  options.batch = batch_of(job.train);
  options.optimizer_slots = slots;
  options.device = true;
  options.windows = false;
  options.ring = job.numerics.reduce == ReduceKind::kRing;
  const Plan plan = plan_mesh(shape, options), forward = plan_evaluation(shape, options, plan);
  return device_forecast(job, model, plan, forward, rank);
}

/// What a buffer of that size takes.
int64_t rounded(int64_t bytes) { return align_up(bytes, 256); }

int64_t bytes(const DeviceForecast& forecast, BufferKind kind) {
  return forecast.plan.bytes[static_cast<int>(kind)];
}

TEST(DeviceForecast, OfASmallModelIsTheSumDoneByHand) {
  const Model model = described();
  const ModelShape shape = describe(model);
  const DeviceForecast f = forecast_of(small_job(1, 1, 1), model, shape);
  EXPECT_EQ(bytes(f, BufferKind::kParameter), 4 * (64 + 832));
  EXPECT_EQ(bytes(f, BufferKind::kMoment), 2 * 4 * (64 + 832));
  EXPECT_EQ(bytes(f, BufferKind::kGradient), 4 * (64 + 832));
  EXPECT_EQ(bytes(f, BufferKind::kSaved), rounded(1000) + rounded(2000));
  EXPECT_EQ(bytes(f, BufferKind::kWork), rounded(700) + 4 * 256) << "and the step's few numbers";
  const int64_t h = rounded(4 * kRows * 8), logits = rounded(4 * kRows * 100), loss = 256;
  EXPECT_EQ(bytes(f, BufferKind::kBorder), h + logits + loss + logits + h)
      << "and the gradients of two of them";
  EXPECT_EQ(f.low, 0) << "float32 has no copies";
  EXPECT_EQ(f.messages, 0) << "one rank alone";
  EXPECT_EQ(f.input, 3 * (256 + 256))
      << "x and targets, each on a 256-byte border: in their place and in two stages";
  EXPECT_EQ(f.captured, 0) << "ATen allocates nothing for it";
  EXPECT_GT(f.libraries, 0);
  EXPECT_EQ(f.total(), f.plan.total() + f.input + f.libraries);
}

TEST(DeviceForecast, InputGrowsWithTheMicroBatchesOfARanksStep) {
  const Model model = described();
  const ModelShape shape = describe(model);
  EXPECT_EQ(forecast_of(small_job(1, 4, 3), model, shape).input, 3 * 512 * 4 * 3);
  EXPECT_EQ(forecast_of(small_job(2, 4, 3), model, shape).input, 3 * 512 * 2 * 3);
  EXPECT_EQ(forecast_of(small_job(2, 5, 1), model, shape, 0).input +
                forecast_of(small_job(2, 5, 1), model, shape, 1).input,
            3 * 512 * 5);
}

TEST(DeviceForecast, SixteenBitsHaveCopiesOfTheUnits) {
  const Model model = described();
  const ModelShape shape = describe(model);
  for (const char* precision : {"bfloat16", "float16"}) {
    Job job = small_job(1, 1, 1);
    job.numerics.precision = value_named<Precision>(precision).value();
    EXPECT_EQ(forecast_of(job, model, shape).low, rounded(2 * 64) + rounded(2 * 832)) << precision;
  }
}

TEST(DeviceForecast, RanksThatSendHaveMessagesAndTheirLibrary) {
  const Model model = described();
  const ModelShape shape = describe(model);
  const DeviceForecast one = forecast_of(small_job(1, 2, 1), model, shape),
                       two = forecast_of(small_job(2, 2, 1), model, shape);
  EXPECT_GT(two.libraries, one.libraries);
  // Each of two ranks gets the other's partial of its slice: together all of the parameters, with
  // some padding.
  const int64_t messages = two.messages + forecast_of(small_job(2, 2, 1), model, shape, 1).messages;
  EXPECT_GE(messages, 4 * (32 + 800));
  EXPECT_LE(messages, 4 * (64 + 832 + 2 * 64));
  Job ring = small_job(2, 2, 1);
  ring.numerics.reduce = ReduceKind::kRing;
  EXPECT_EQ(forecast_of(ring, model, shape).messages, 0);
}

TEST(AtenBytes, AreWhatTheDryRunFoundBesideWhatSegmentsDeclare) {
  const Model model = described();
  ModelShape shape = describe(model);
  const auto bytes = [&] {
    MeshOptions options;
    options.batch = {1, 1, 1};
    options.device = true;
    return aten_bytes(model, plan_mesh(shape, options).programs[0]);
  };
  EXPECT_EQ(bytes(), 0);
  shape.blocks[0].segments[0].saved_bytes += 10 * 256;
  shape.blocks[1].segments[0].saved_bytes += 20 * 256;
  EXPECT_EQ(bytes(), 30 * 256) << "all are kept until backward";
  shape.blocks[0].segments[0].work_bytes += 100 * 256;
  shape.blocks[1].segments[1].work_bytes += 40 * 256;
  EXPECT_EQ(bytes(), 30 * 256 + rounded(300 + 100 * 256) - rounded(700))
      << "one segment works at a time";
}

TEST(AtenBytes, AreForecastOnceMoreForACapturedStepAlone) {
  for (bool can_capture : {true, false})
    for (bool graph : {true, false}) {
      const Model model = described(
          [&](Described&, Described& narrow, Described&) { narrow.can_capture = can_capture; });
      ModelShape shape = describe(model);
      shape.blocks[0].segments[0].saved_bytes += 5000;
      Job job = small_job(1, 1, 1);
      job.layout.graph = graph;
      const DeviceForecast f = forecast_of(job, model, shape);
      EXPECT_EQ(f.captured, can_capture && graph ? rounded(6000) - rounded(1000) : 0);
      EXPECT_EQ(bytes(f, BufferKind::kSaved), rounded(1000 + 5000) + rounded(2000));
    }
}

TEST(CaptureFaults, NameTheSegmentsThatDrawOrDoNotSaySo) {
  EXPECT_TRUE(capture_faults(described()).empty());
  const Model model = described([](Described& wide, Described& narrow, Described& end) {
    wide.draws_torch = true;
    narrow.can_capture = false;
    end.can_capture = true;
  });
  EXPECT_EQ(capture_faults(model),
            (std::vector<std::string>{"a/wide draws from torch's generator",
                                      "b/narrow does not say that it can be captured"}));
}

TEST(RanksOnDevice, CountsThoseThatTakeTheSame) {
  const auto count = [](int64_t ranks, int rank, int devices) {
    Job job = parse_job("", "job", {});
    job.layout.ranks = ranks;
    return ranks_on_device(job, rank, devices);
  };
  EXPECT_EQ(count(1, 0, 1), 1);
  EXPECT_EQ(count(4, 2, 1), 4);
  EXPECT_EQ(count(4, 2, 8), 1);
  EXPECT_EQ(count(5, 0, 2), 3);
  EXPECT_EQ(count(5, 3, 2), 2);
}

TEST(MemoryFault, ThereIsNoneWhileAllFits) {
  DeviceForecast f;
  f.low = 3 * kGiB;
  EXPECT_EQ(memory_fault(f, 3 * kGiB, {1, f.total()}, "a GPU"), "");
  EXPECT_NE(memory_fault(f, 3 * kGiB - 1, {1, f.total()}, "a GPU"), "");
}

TEST(MemoryFault, RanksOfOneDeviceAreJudgedTogether) {
  DeviceForecast f;
  f.low = 3 * kGiB;
  EXPECT_EQ(memory_fault(f, 12 * kGiB, {4, 12 * kGiB}, "a GPU"), "");
  const std::string fault = memory_fault(f, 12 * kGiB - 1, {4, 12 * kGiB}, "a GPU");
  EXPECT_NE(fault.find("12 GiB for 4 ranks"), std::string::npos) << fault;
}

TEST(MemoryFault, NamesTheDeviceWhatIsFreeAndTheLargestHoldersInOrder) {
  DeviceForecast f;
  f.plan.bytes[static_cast<int>(BufferKind::kSaved)] = 20 * kGiB;
  f.plan.bytes[static_cast<int>(BufferKind::kMoment)] = 8 * kGiB;
  f.plan.bytes[static_cast<int>(BufferKind::kParameter)] = 4 * kGiB;
  f.messages = 5 * kGiB;
  f.input = kGiB / 2;
  f.libraries = kGiB;
  const std::string fault = memory_fault(f, 16 * kGiB, {1, f.total()}, "NVIDIA H200");
  const auto at = [&](const std::string& text) {
    const size_t found = fault.find(text);
    EXPECT_NE(found, std::string::npos) << "\"" << text << "\" is not in: " << fault;
    return found;
  };
  at("needs 38.5 GiB of NVIDIA H200, which has 16 GiB free");
  const std::string saved = kind_name(BufferKind::kSaved), moment = kind_name(BufferKind::kMoment),
                    parameter = kind_name(BufferKind::kParameter);
  EXPECT_LT(at(saved + " 20 GiB"), at(moment + " 8 GiB"));
  EXPECT_LT(at(moment + " 8 GiB"), at("messages 5 GiB"));
  EXPECT_LT(at("messages 5 GiB"), at(parameter + " 4 GiB"));
  EXPECT_EQ(fault.find("input"), std::string::npos) << "only the largest four: " << fault;
  at("train.micro_batch_size");
}

TEST(MemoryFault, OffersToDoWithoutTheGraphWhereThatHelps) {
  DeviceForecast f;
  f.low = 4 * kGiB;
  EXPECT_EQ(memory_fault(f, kGiB, {1, f.total()}, "a GPU").find("layout.graph"), std::string::npos)
      << "nothing is captured";
  f.captured = kGiB;
  EXPECT_NE(memory_fault(f, kGiB, {1, f.total()}, "a GPU").find("layout.graph = false"),
            std::string::npos);
}

/// Shapes are all that is wanted of it.
template <class A>
KernelsFor<A> no_kernels() {
  KernelsFor<A> kernels{};
  kernels.matmul.work = [](int64_t, int64_t, int64_t) -> int64_t { return 0; };
  kernels.attention_work = [](const AttentionShape&) -> int64_t { return 0; };
  return kernels;
}

template <class A>
DeviceForecast gpt_forecast(int64_t micro_batch_size, const char* precision,
                            const std::vector<Setting>& settings = {}) {
  Job job = resolved(testing_support::kLargerGpt, settings);
  job.train.micro_batch_size = micro_batch_size;
  job.numerics.precision = value_named<Precision>(precision).value();
  static const KernelsFor<A> kernels = no_kernels<A>();
  const Model model = make_gpt(job, kernels);
  return forecast_of(job, model, describe(model));
}

TEST(DeviceForecast, GrowsWithTheMicroBatchWhereItMust) {
  const DeviceForecast small = gpt_forecast<float>(2, "float32"),
                       large = gpt_forecast<float>(6, "float32");
  for (BufferKind kind : {BufferKind::kParameter, BufferKind::kMoment, BufferKind::kGradient})
    EXPECT_EQ(bytes(small, kind), bytes(large, kind)) << kind_name(kind);
  EXPECT_EQ(bytes(large, BufferKind::kSaved), 3 * bytes(small, BufferKind::kSaved));
  EXPECT_EQ(bytes(large, BufferKind::kBorder) - 256, 3 * (bytes(small, BufferKind::kBorder) - 256))
      << "but the loss";
  EXPECT_EQ(large.input, 3 * small.input);
  EXPECT_GT(large.total(), small.total());
}

TEST(DeviceForecast, SixteenBitsHalveWhatAGptKeeps) {
  const DeviceForecast wide = gpt_forecast<float>(4, "float32"),
                       narrow = gpt_forecast<c10::BFloat16>(4, "bfloat16");
  for (BufferKind kind : {BufferKind::kParameter, BufferKind::kMoment, BufferKind::kGradient})
    EXPECT_EQ(bytes(narrow, kind), bytes(wide, kind)) << kind_name(kind) << " stay float32";
  for (BufferKind kind : {BufferKind::kSaved, BufferKind::kBorder}) {
    const double ratio =
        static_cast<double>(bytes(narrow, kind)) / static_cast<double>(bytes(wide, kind));
    EXPECT_GE(ratio, 0.5) << kind_name(kind);
    EXPECT_LE(ratio, 0.53) << kind_name(kind) << ": statistics of rows stay float32, which are few";
  }
  const int64_t half = bytes(wide, BufferKind::kParameter) / 2;
  EXPECT_GE(narrow.low, half);
  EXPECT_LE(narrow.low, half + 4 * 256) << "each unit's copy is rounded up";
}

TEST(CaptureFaults, BuiltInModelsHaveNone) {
  const std::string gpt = testing_support::kLargerGpt, mlp = testing_support::kLargerMlp;
  const std::vector<std::pair<std::string, std::vector<Setting>>> jobs{
      {gpt, {}},
      {gpt, {{"model.dropout", "0.1"}}},
      {gpt, {{"loss.label_smoothing", "0.1"}}},
      {mlp, {}},
      {mlp, {{"model.dropout", "0.1"}}},
      {"[model]\nkind = \"cnn\"\nimage = [1, 8, 8]\nchannels = [4]\nclasses = 4\nnorm = "
       "\"batch\"\n[data]\nkind = "
       "\"numpy\"\npath = \"x.npy\"\n",
       {}},
      {"[model]\nkind = \"autoencoder\"\ninputs = 8\nhidden = [4]\n[data]\nkind = \"points\"\n",
       {}},
      {"[model]\nkind = \"wide-deep\"\n[data]\nkind = \"clicks\"\n", {}}};
  for (const auto& [text, settings] : jobs) {
    const Job job = resolved(text, settings);
    const std::vector<std::string> faults = capture_faults(make_model(job));
    EXPECT_TRUE(faults.empty()) << text << faults.front();
  }
}

}  // namespace
}  // namespace tutti
