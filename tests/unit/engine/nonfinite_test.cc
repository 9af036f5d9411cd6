// Where a value stopped being finite: lane, micro-batch and block are found again, the same from every cut of the
// lanes.
#include "engine/nonfinite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "engine/units.h"
#include "grid/order.h"
#include "model/make_model.h"

namespace tutti {
namespace {

constexpr int64_t kInputs = 4, kRecords = 64;
constexpr uint64_t kSeed = 3;

/// Points of one class whose features are all one; those of one record are `value`.
class Spiked final : public Dataset {
 public:
  Spiked(int64_t record, float value, int64_t target = 0) : record_(record), value_(value), target_(target) {}
  int64_t size() const override { return kRecords; }
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    std::fill_n(tensors[0].mutable_data_ptr<float>() + row * kInputs, kInputs, record == record_ ? value_ : 1.0f);
    tensors[1].mutable_data_ptr<int64_t>()[row] = target_;
  }

 private:
  int64_t record_;
  float value_;
  int64_t target_;
};

class NonFiniteTest : public testing::Test {
 protected:
  NonFiniteTest() : model_(make_model(job_)), shape_(describe(model_)), units_(model_, shape_, {}, kSeed, accounts_) {
    std::vector<float*> parameters;
    for (size_t u = 0; u < shape_.blocks.size(); ++u) parameters.push_back(units_.parameters(static_cast<int>(u)));
    runner_ = std::make_unique<ModelRunner>(model_, shape_, parameters, accounts_);
    view_ = rendezvous_.view(0);
  }

  NonFinitePlace find(std::shared_ptr<const Dataset> data, Range lanes, int64_t step = 0) {
    RankContext context{0, 1, clock_, control_, *view_};
    LoaderOptions options;
    options.order = {kSeed, static_cast<uint64_t>(data->size()), nullptr};
    options.data = std::move(data);
    options.borders = model_.data;
    options.batch = batch_;
    options.sequence = lane_by_lane(lanes, batch_);
    options.first_step = step;
    HostPlacement whole(model_, *runner_, batch_, lanes);
    Cut in_parts(whole);
    Placement& placement = cut_ ? static_cast<Placement&>(in_parts) : whole;
    return find_nonfinite(model_, shape_, placement, std::move(options), kSeed, context);
  }
  /// A placement that has no runner to offer.
  struct Cut final : Placement {
    explicit Cut(HostPlacement& all) : whole(all) {}
    bool computes(int) const override { return true; }
    std::optional<Evaluated> forward(const Pass& pass, const std::vector<at::Tensor>& data) override {
      return whole.forward(pass, data);
    }
    int64_t output_width() override { return whole.output_width(); }
    ModelRunner* runner() override { return nullptr; }
    Pass pass_of(uint64_t seed, int64_t step, int lane, int micro) const override {
      return whole.pass_of(seed, step, lane, micro);
    }
    HostPlacement& whole;
  };
  static Job job() {
    Job job = parse_job("", "job", {});
    job.model.kind = "mlp";
    job.model.inputs = kInputs;
    job.model.hidden = {8, 8};
    job.model.classes = 2;
    job.model.init = "he-uniform";
    job.data.kind = "points";
    job.train.lanes = 4;
    job.train.micro_batches = 2;
    job.train.micro_batch_size = 2;
    return job;
  }

  const Job job_ = job();
  const Batch batch_ = batch_of(job_.train);
  Accounts accounts_;
  Model model_;
  ModelShape shape_;
  Units units_;
  std::unique_ptr<ModelRunner> runner_;
  SystemClock clock_;
  Control control_;
  ThreadRendezvous rendezvous_{1, clock_, nullptr};
  std::unique_ptr<Rendezvous> view_;
  bool cut_ = false;
};

TEST_F(NonFiniteTest, NothingIsFoundWhereAllIsFinite) {
  EXPECT_EQ(find(std::make_shared<Spiked>(-1, 0.0f), {0, 4}).lane, -1);
}

TEST_F(NonFiniteTest, TheLaneAndMicroBatchOfABadRecordAreFound) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (int64_t step : {0, 2})
    for (int lane = 0; lane < batch_.lanes; ++lane)
      for (int micro = 0; micro < batch_.micro_batches; ++micro) {
        const auto position = static_cast<uint64_t>(first_sample(batch_, step, lane, micro));
        auto data = std::make_shared<Spiked>(record_at(kSeed, position, kRecords), infinity);
        const NonFinitePlace place = find(data, {0, 4}, step);
        EXPECT_EQ(place.lane, lane);
        EXPECT_EQ(place.micro, micro);
        EXPECT_EQ(place.gradient, 0);
        EXPECT_EQ(place.block, 0);
        EXPECT_EQ(find(data, {lane, lane + 1}, step).lane, lane);
        EXPECT_EQ(find(data, {(lane + 1) % 4, (lane + 1) % 4 + 1}, step).lane, -1) << "another rank's lanes are finite";
      }
}

TEST_F(NonFiniteTest, OfAModelThatIsCutTheLossIsFound) {
  cut_ = true;
  const auto position = static_cast<uint64_t>(first_sample(batch_, 2, 1, 1));
  auto data = std::make_shared<Spiked>(record_at(kSeed, position, kRecords), std::numeric_limits<float>::infinity());
  const NonFinitePlace place = find(data, {0, 4}, 2), none = find(std::make_shared<Spiked>(-1, 0.0f), {0, 4});
  EXPECT_EQ(describe_nonfinite({none, place}, 3, shape_), "step 3, lane 1, micro-batch 1: the loss is not finite");
  EXPECT_EQ(describe_nonfinite({none, {}}, 3, shape_),
            "step 3: a gradient is not finite, though every loss is; lower train.lr or set train.clip");
  units_.parameters(0)[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(find(data, {1, 4}).lane, 1) << "the first of many";
}

TEST_F(NonFiniteTest, TheFirstBlockThatSpoilsTheValuesIsFound) {
  for (int block = 2; block >= 0; --block) {
    ASSERT_FALSE(shape_.blocks[block].parameters.empty());
    units_.parameters(block)[0] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(find(std::make_shared<Spiked>(-1, 0.0f), {1, 3}).block, block);
    EXPECT_EQ(find(std::make_shared<Spiked>(-1, 0.0f), {1, 3}).lane, 1);
  }
}

TEST_F(NonFiniteTest, AGradientThatOverflowsUnderAFiniteLossIsFound) {
  // The first layer ignores its inputs (zero weights) but not its bias; so huge inputs show in its gradient alone.
  for (const ParameterShape& p : shape_.blocks[0].parameters)
    std::fill_n(units_.parameters(0) + p.offset, p.size, p.dims.size() == 1 ? 1.0f : 0.0f);
  for (const ParameterShape& p : shape_.blocks[2].parameters)
    for (int64_t i = 0; i < p.size; ++i) units_.parameters(2)[p.offset + i] *= 100;
  const auto record =
      static_cast<int64_t>(record_at(kSeed, static_cast<uint64_t>(first_sample(batch_, 0, 2, 1)), kRecords));
  // The steep head is sure of one class; targets of the other one have a gradient.
  NonFinitePlace place = find(std::make_shared<Spiked>(record, 3e38f, 0), {0, 4});
  if (place.lane < 0) place = find(std::make_shared<Spiked>(record, 3e38f, 1), {0, 4});
  EXPECT_EQ(place.lane, 2);
  EXPECT_EQ(place.micro, 1);
  EXPECT_EQ(place.block, 0);
  EXPECT_EQ(place.gradient, 1);
}

TEST_F(NonFiniteTest, TheMessageNamesTheLowestLaneWhicheverRankFoundIt) {
  const NonFinitePlace none, third{3, 1, 1, 0}, second{2, 0, 2, 1};
  const std::string expected =
      "step 5, lane 2, micro-batch 0: the gradient of block " + shape_.blocks[2].name + " is not finite";
  EXPECT_EQ(describe_nonfinite({none, third, second}, 5, shape_), expected);
  EXPECT_EQ(describe_nonfinite({second, none, third}, 5, shape_), expected);
  EXPECT_EQ(describe_nonfinite({third}, 5, shape_),
            "step 5, lane 3, micro-batch 1: the loss is not finite; the first block with a non-finite output is " +
                shape_.blocks[1].name);
}

TEST_F(NonFiniteTest, ASumThatOverflowsIsSaidWhereEveryLaneIsFinite) {
  const std::string text = describe_nonfinite({{}, {}}, 5, shape_);
  EXPECT_NE(text.find("step 5"), std::string::npos);
  EXPECT_NE(text.find("over all lanes"), std::string::npos);
}

}  // namespace
}  // namespace tutti
