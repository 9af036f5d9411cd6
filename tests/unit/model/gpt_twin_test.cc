// The hand-written GPT against its autograd twin: loss and every gradient. Tolerance: both are
// float32 with sums in other orders over up to 128 terms and three layers deep; 2e-5 of a
// gradient's largest value leaves room of about five.
#include <functional>

#include "unit/model/support/gpt_case.h"

namespace tutti::test {
namespace {

constexpr double kTolerance = 2e-5;

void compare(Job job, CodePath isa, MatmulKind matmul) {
  if (!can_run(isa)) return;
  job.model.autograd = false;
  GptCase ours(job, isa, matmul);
  job.model.autograd = true;
  GptCase twin(job, isa);
  const Loss a = ours.forward(), b = twin.forward();
  EXPECT_NEAR(a.sum / b.sum, 1, 2e-6);
  EXPECT_EQ(a.count, b.count);
  ours.backward();
  twin.backward();
  expect_same_gradients(ours, twin, kTolerance);
}

void compare_all(const Job& job) {
  for (const MatmulKind matmul : {MatmulKind::kOwn, MatmulKind::kMkl}) {
    compare(job, CodePath::kAvx2, matmul);
    compare(job, CodePath::kAvx512, matmul);
  }
}
void compare_all(const ModelConfig& config) { compare_all(gpt_job(config, GptCase::kBatch)); }

TEST(GptTwin, AgreesUntiedWithExactGelu) { compare_all(small_gpt()); }

TEST(GptTwin, AgreesTiedWithTanhGelu) {
  ModelConfig c = small_gpt();
  c.tied = true;
  c.activation = Activation::kGeluTanh;
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

struct Option {
  std::string name;
  std::function<void(ModelConfig&)> set;
};

const std::vector<Option>& options() {
  static const std::vector<Option> all = {
      {"rotary", [](ModelConfig& c) { c.positions = Positions::kRotary; }},
      {"rms", [](ModelConfig& c) { c.norm = NormKind::kRms; }},
      {"swiglu", [](ModelConfig& c) { c.activation = Activation::kSwiglu; }},
      {"two heads of keys", [](ModelConfig& c) { c.kv_heads = 2; }},
      {"no biases", [](ModelConfig& c) { c.bias = false; }},
      {"tied", [](ModelConfig& c) { c.tied = true; }},
      {"dropout", [](ModelConfig& c) { c.dropout = 0.2; }},
  };
  return all;
}

// Every set of the seven options, by turns on the instruction sets and matmuls: 128 models of one
// layer at odd sizes.
TEST(GptTwin, AgreesInEveryCombinationOfOptions) {
  for (size_t set = 0; set < size_t{1} << options().size(); ++set) {
    ModelConfig c = small_gpt();
    c.layers = 1;
    c.width = 24;
    c.heads = 4;
    c.context = 19;
    c.vocab = 13;
    std::string names;
    for (size_t i = 0; i < options().size(); ++i) {
      if ((set >> i & 1) == 0) continue;
      options()[i].set(c);
      names += options()[i].name + ", ";
    }
    SCOPED_TRACE(names);
    compare(gpt_job(c, GptCase::kBatch), set % 3 == 0 ? CodePath::kAvx2 : CodePath::kAvx512,
            set % 2 == 0 ? MatmulKind::kOwn : MatmulKind::kMkl);
  }
}

TEST(GptTwin, AgreesWithLlamasOptionsAtOddSizes) {
  for (const int64_t context : {1, 5, 17, 33}) {
    for (const int64_t kv_heads : {1, 3}) {
      ModelConfig c = small_llama();
      c.context = context;
      c.width = 42;
      c.heads = 3;
      c.kv_heads = kv_heads;
      c.vocab = 11;
      c.mlp_width = 37;
      c.dropout = 0.1;
      compare_all(c);
    }
  }
}

TEST(GptTwin, AgreesWithLlamasOptionsAtTheHeadSizesThatAreTrainedMost) {
  ModelConfig c = small_llama();
  c.layers = 1;
  c.width = 128;
  c.context = 40;
  c.rotary_base = 500;
  compare_all(c);
  c.heads = 2;
  c.kv_heads = 1;
  compare_all(c);
}

TEST(GptTwin, AgreesWithEveryActivation) {
  for (const char* name :
       {"gelu", "gelu-tanh", "relu", "silu", "tanh", "sigmoid", "leaky-relu", "elu"}) {
    SCOPED_TRACE(name);
    ModelConfig c = small_gpt();
    c.activation = value_named<Activation>(name).value();
    c.layers = 1;
    compare_all(c);
  }
}

TEST(GptTwin, AgreesWithASmoothedAndWeightedLoss) {
  Job job = gpt_job(small_llama(), GptCase::kBatch);
  job.loss.label_smoothing = 0.1;
  for (int64_t v = 0; v < job.model.vocab; ++v)
    job.loss.class_weights.push_back(v % 3 == 0 ? 2.0 : 0.5);
  compare_all(job);
  GptCase plain(small_llama(), CodePath::kAvx2), smoothed(job, CodePath::kAvx2);
  EXPECT_NE(plain.forward().sum, smoothed.forward().sum);
}

}  // namespace
}  // namespace tutti::test
