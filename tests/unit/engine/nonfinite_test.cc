// Where a value stopped being finite: lane, micro-batch and block are found again, the same on
// every layout and on every rank.
#include "engine/nonfinite.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "config/model_rules.h"
#include "model/make_model.h"
#include "support/device_ranks.h"
#include "support/stream_device.h"
#include "train/trainer.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

/// What goes wrong, once it is armed: an output (or the gradient) of a block is `value` throughout.
/// A negative lane is every one.
struct Spoil {
  std::atomic<bool> armed = false;
  int lane = 0, micro = 0, block = 0;
  bool gradient = false;
  float value = std::numeric_limits<float>::quiet_NaN();
  /// Instead of a place: the output of the first block is spoilt where its input adds up to this,
  /// one of the sums that are written down here.
  std::optional<double> data;
  mutable std::mutex mutex;
  mutable std::map<std::tuple<int64_t, int, int>, double> sums;  // by step, lane, micro-batch

  bool hits_data(const Pass& pass, const at::Tensor& input) const {
    if (!pass.training) return false;
    double sum = 0;
    for (int64_t i = 0; i < input.numel(); ++i) sum += input.const_data_ptr<float>()[i];
    const std::lock_guard lock(mutex);
    sums[{pass.step, pass.lane, pass.micro}] = sum;
    return data && *data == sum;
  }

  bool hits(const Pass& pass, int at) const {
    const bool here = lane < 0 || (pass.lane == lane && pass.micro == micro);
    return armed && pass.training && here && at == block;
  }
};

/// A segment that computes as another one does, but for what is spoilt.
class Spoilt final : public Segment {
 public:
  Spoilt(std::unique_ptr<Segment> inner, int block, bool first, const Spoil& spoil)
      : inner_(std::move(inner)), block_(block), first_(first), spoil_(spoil) {}
  std::string name() const override { return inner_->name(); }
  std::vector<Border> inputs() const override { return inner_->inputs(); }
  std::vector<Border> outputs() const override { return inner_->outputs(); }
  int64_t saved_bytes() const override { return inner_->saved_bytes(); }
  int64_t work_bytes() const override { return inner_->work_bytes(); }
  bool splits() const override { return inner_->splits(); }
  int64_t deferred_bytes() const override { return inner_->deferred_bytes(); }
  void forward(Context& context, Tensors in, Tensors out) const override {
    inner_->forward(context, in, out);
    const bool by_data = block_ == 0 && first_ && spoil_.hits_data(context.pass, in[0]);
    const bool by_place = !spoil_.data && !spoil_.gradient && spoil_.hits(context.pass, block_);
    if (by_data || by_place) out[0].fill_(spoil_.value);
  }
  void backward(Context& context, Tensors in, Tensors out, Tensors grad_out,
                Tensors grad_in) const override {
    inner_->backward(context, in, out, grad_out, grad_in);
    spoil_gradient(context);
  }
  void backward_input(Context& context, Tensors in, Tensors out, Tensors grad_out,
                      Tensors grad_in) const override {
    inner_->backward_input(context, in, out, grad_out, grad_in);
  }
  void backward_weight(Context& context, Tensors in, Tensors out) const override {
    inner_->backward_weight(context, in, out);
    spoil_gradient(context);
  }

 private:
  void spoil_gradient(const Context& context) const {
    if (first_ && spoil_.gradient && spoil_.hits(context.pass, block_))
      context.gradients[0].fill_(spoil_.value);
  }

  std::unique_ptr<Segment> inner_;
  const int block_;
  const bool first_;  // of its block
  const Spoil& spoil_;
};

Model spoilt_model(const Job& job, const Spoil& spoil) {
  Model model = make_model(job);
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    bool first = true;
    for (auto& segment : model.blocks[b].segments)
      segment = std::make_unique<Spoilt>(std::move(segment), static_cast<int>(b),
                                         std::exchange(first, false), spoil);
  }
  return model;
}

constexpr const char* kJob = R"(
[model]
kind = "mlp"
inputs = 4
hidden = [8, 8]
classes = 2
init = "he-uniform"
[data]
kind = "points"
[train]
lanes = 4
micro_batches = 2
micro_batch_size = 2
steps = 4
[layout]
workers = "thread"
)";

Job job_of(const std::vector<Setting>& settings) {
  Job job = parse_job(kJob, "job", settings);
  resolve(job, this_machine(), {});
  return job;
}

/// Two steps of a trainer on every rank, then one that is spoilt: what they said of it, of which
/// all must say the same.
std::string said(const Job& job, Spoil& spoil, bool on_device = false) {
  std::vector<std::string> messages(static_cast<size_t>(job.layout.ranks));
  LaunchOptions launch;
  launch.ranks = static_cast<int>(job.layout.ranks);
  launch.threads = true;
  expect_ok(launch_local(launch, [&](RankContext& context) {
    RankDevice device{&stream_library(), on_device ? std::make_unique<StreamDevice>() : nullptr};
    if (on_device) device.compute = device.device->make_stream();
    const Model model = spoilt_model(job, spoil);
    Trainer trainer(job, model, context, "", {}, on_device ? &device : nullptr);
    for (int i = 0; i < 2; ++i) trainer.step();
    context.rendezvous.exchange({}, Deadline::never());  // all have ended their steps
    spoil.armed = true;
    try {
      trainer.step();
    } catch (const Error& error) {
      messages[static_cast<size_t>(context.rank)] = error.what();
    }
  }));
  spoil.armed = false;
  for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
  return messages[0];
}

const std::vector<std::vector<Setting>> kLayouts = {
    {{"layout.ranks", "1"}},
    {{"layout.ranks", "1"}, {"layout.recompute", "full"}},
    {{"layout.ranks", "2"}},
    {{"layout.ranks", "3"}, {"layout.zero", "0"}},
    {{"layout.ranks", "3"}, {"layout.zero", "1"}, {"layout.overlap", "false"}},
    {{"layout.ranks", "4"}, {"layout.zero", "2"}, {"layout.shards", "2"}},
    {{"layout.ranks", "3"}, {"layout.zero", "3"}},
    {{"layout.ranks", "2"}, {"layout.fold", "root"}},
    {{"layout.ranks", "3"}, {"numerics.reduce", "ring"}},
    {{"layout.ranks", "2"}, {"layout.partition", "hash"}},
    {{"layout.ranks", "3"}, {"layout.transport", "tcp"}},
    {{"layout.ranks", "2"}, {"layout.transport", "tcp"}, {"layout.zero", "3"}},
    {{"layout.ranks", "2"}, {"numerics.order", "micro"}},
    {{"layout.ranks", "2"}, {"layout.pipeline", "2"}},
    {{"layout.ranks", "3"}, {"layout.pipeline", "3"}, {"layout.schedule", "zero-bubble"}},
    {{"layout.ranks", "4"}, {"layout.pipeline", "2"}, {"layout.zero", "3"}},
};

std::string name_of(const std::vector<Setting>& layout) {
  std::string name;
  for (const Setting& setting : layout) name += setting.key + "=" + setting.value + " ";
  return name;
}

TEST(NonFinite, AnOutputIsFoundOnEveryLayout) {
  const Model model = make_model(job_of({}));
  for (const auto& layout : kLayouts)
    for (const auto& [lane, micro, block] : {std::tuple{0, 1, 2}, {2, 0, 1}, {3, 1, 0}}) {
      Spoil spoil{.lane = lane, .micro = micro, .block = block};
      EXPECT_EQ(said(job_of(layout), spoil),
                fmt::format("step 3, lane {}, micro-batch {}: the loss is not finite; the first "
                            "block with a non-finite "
                            "output is {}",
                            lane, micro, model.blocks[block].name))
          << name_of(layout);
    }
}

TEST(NonFinite, AGradientUnderAFiniteLossIsFoundOnEveryLayout) {
  const Model model = make_model(job_of({}));
  for (const auto& layout : kLayouts)
    for (const auto& [lane, micro, block] : {std::tuple{0, 0, 0}, {1, 1, 2}, {3, 0, 1}}) {
      Spoil spoil{.lane = lane, .micro = micro, .block = block, .gradient = true};
      EXPECT_EQ(
          said(job_of(layout), spoil),
          fmt::format("step 3, lane {}, micro-batch {}: the gradient of block {} is not finite",
                      lane, micro, model.blocks[block].name))
          << name_of(layout);
    }
}

TEST(NonFinite, OfManyTheFirstIsNamed) {
  const Model model = make_model(job_of({}));
  for (const auto& layout : kLayouts) {
    Spoil outputs{.lane = -1, .block = 1}, gradients{.lane = -1, .block = 1, .gradient = true};
    EXPECT_EQ(said(job_of(layout), outputs),
              "step 3, lane 0, micro-batch 0: the loss is not finite; the first block with a "
              "non-finite output is " +
                  model.blocks[1].name)
        << name_of(layout);
    EXPECT_EQ(said(job_of(layout), gradients),
              "step 3, lane 0, micro-batch 0: the gradient of block " + model.blocks[1].name +
                  " is not finite")
        << name_of(layout);
  }
}

TEST(NonFinite, ASumThatOverflowsIsSaidWhereEveryGradientIsFinite) {
  for (const auto& layout : kLayouts) {
    Spoil spoil{.lane = -1, .block = 1, .gradient = true, .value = 3e38f};
    EXPECT_EQ(said(job_of(layout), spoil),
              "step 3: the sum of the gradients over all lanes is not finite; lower train.lr or "
              "set train.clip")
        << name_of(layout);
  }
}

TEST(NonFinite, ADeviceSaysTheSame) {
  const Model model = make_model(job_of({}));
  for (const std::vector<Setting>& layout :
       std::vector<std::vector<Setting>>{{{"layout.ranks", "1"}},
                                         {{"layout.ranks", "2"}, {"layout.zero", "0"}},
                                         {{"layout.ranks", "2"}, {"layout.zero", "1"}},
                                         {{"layout.ranks", "3"}, {"layout.zero", "3"}},
                                         {{"layout.ranks", "2"}, {"layout.pipeline", "2"}}}) {
    Spoil output{.lane = 2, .micro = 1, .block = 1},
        gradient{.lane = 1, .micro = 0, .block = 2, .gradient = true};
    EXPECT_EQ(said(job_of(layout), output, true),
              "step 3, lane 2, micro-batch 1: the loss is not finite; the first block with a "
              "non-finite output is " +
                  model.blocks[1].name)
        << name_of(layout);
    EXPECT_EQ(said(job_of(layout), gradient, true),
              "step 3, lane 1, micro-batch 0: the gradient of block " + model.blocks[2].name +
                  " is not finite")
        << name_of(layout);
  }
}

TEST(NonFinite, ADeviceLooksAtTheDataOfTheStepAgain) {
  // When the search begins the next step's micro-batches may be on the device already.
  for (const char* prefetch : {"true", "false"})
    for (const char* ranks : {"1", "2"}) {
      const Job job = job_of({{"layout.ranks", ranks}});
      Job fed = job;
      fed.layout.prefetch = prefetch == std::string("true");
      Spoil spoil{.lane = 99};
      said(fed, spoil, true);  // nothing is spoilt: it writes down the sums of its data
      spoil.data = spoil.sums.at({2, 2, 1});
      EXPECT_EQ(said(fed, spoil, true),
                "step 3, lane 2, micro-batch 1: the loss is not finite; the first block with a "
                "non-finite output is " +
                    make_model(job).blocks[0].name)
          << ranks << " ranks, prefetch " << prefetch;
    }
}

TEST(NonFinite, TheMessageNamesTheLowestLaneWhicheverRankFoundIt) {
  const ModelShape shape = describe(make_model(job_of({})));
  const NonFinitePlace none, third{3, 1, 1, 0}, second{2, 0, 2, 1};
  const std::string expected = "step 5, lane 2, micro-batch 0: the gradient of block " +
                               shape.blocks[2].name + " is not finite";
  EXPECT_EQ(describe_nonfinite({none, third, second}, 5, shape), expected);
  EXPECT_EQ(describe_nonfinite({second, none, third}, 5, shape), expected);
  EXPECT_EQ(describe_nonfinite({third}, 5, shape),
            "step 5, lane 3, micro-batch 1: the loss is not finite; the first block with a "
            "non-finite output is " +
                shape.blocks[1].name);
}

}  // namespace
}  // namespace tutti
