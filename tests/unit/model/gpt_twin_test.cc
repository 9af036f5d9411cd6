// The hand-written GPT against its autograd twin: loss and every gradient. Tolerance: both are float32 with sums in
// other orders over up to 128 terms and three layers deep; 2e-5 of a gradient's largest value leaves room of about
// five.
#include <map>

#include "gpt_case.h"

namespace tutti::test {
namespace {

constexpr double kTolerance = 2e-5;

void compare(ModelConfig config, Isa isa, MatmulKind matmul) {
  if (!supported(isa)) return;
  config.autograd = false;
  GptCase ours(config, isa, matmul);
  config.autograd = true;
  GptCase twin(config, isa);
  const Loss a = ours.forward(), b = twin.forward();
  EXPECT_NEAR(a.sum / b.sum, 1, 2e-6);
  EXPECT_EQ(a.count, b.count);
  ours.backward();
  twin.backward();
  ASSERT_EQ(ours.shape.blocks.size(), twin.shape.blocks.size());
  for (size_t block = 0; block < ours.shape.blocks.size(); ++block) {
    const auto compare_range = [&](const std::string& name, int64_t offset, int64_t size) {
      double worst = 0, top = 1e-30;
      for (int64_t i = offset; i < offset + size; ++i) {
        const double x = ours.grads[block][i], y = twin.grads[block][i];
        ASSERT_TRUE(std::isfinite(x)) << name;
        worst = std::max(worst, std::abs(x - y));
        top = std::max(top, std::abs(y));
      }
      EXPECT_LT(worst / top, kTolerance) << name;
      EXPECT_NE(top, 77) << name << " was not written";
    };
    for (const ParameterShape& p : ours.shape.blocks[block].parameters) {
      compare_range(p.name, p.offset, p.size);
      for (const int64_t extra : p.extra_gradients) compare_range(p.name + " of a further user", extra, p.size);
    }
  }
}

void compare_all(const ModelConfig& config) {
  for (const MatmulKind matmul : {MatmulKind::kOwn, MatmulKind::kMkl}) {
    compare(config, Isa::kAvx2, matmul);
    compare(config, Isa::kAvx512, matmul);
  }
}

TEST(GptTwin, AgreesUntiedWithExactGelu) { compare_all(small_gpt()); }

TEST(GptTwin, AgreesTiedWithTanhGelu) {
  ModelConfig c = small_gpt();
  c.tied = true;
  c.activation = "gelu-tanh";
  compare_all(c);
}

TEST(GptTwin, AgreesWithDropout) {
  ModelConfig c = small_gpt();
  c.dropout = 0.2;
  compare_all(c);
  c.tied = true;
  c.width = 72;  // a second, partial group of mask columns
  compare_all(c);
}

TEST(GptTwin, AgreesAtOddSizes) {
  for (const int64_t context : {1, 5, 17, 33}) {
    ModelConfig c = small_gpt();
    c.context = context;
    c.width = 30;
    c.heads = 3;
    c.vocab = 11;
    c.layers = 1;
    compare_all(c);
  }
}

TEST(GptTwin, AgreesAtTheHeadSizesThatAreTrainedMost) {
  ModelConfig c = small_gpt();
  c.layers = 1;
  c.width = 128;
  c.heads = 2;
  c.context = 40;
  compare_all(c);
  c.heads = 4;
  compare_all(c);
}

}  // namespace
}  // namespace tutti::test
