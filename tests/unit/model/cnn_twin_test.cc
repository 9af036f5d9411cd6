// The hand-written CNN against its autograd twin: loss, every gradient and every proposal of a
// buffer. Tolerance: both are float32 with sums in other orders over up to 5,000 pixels and 300
// inputs, six norms deep; 2e-5 of a gradient's largest value leaves room of about five.
#include <set>

#include "unit/model/support/cnn_case.h"

namespace tutti::test {
namespace {

constexpr double kTolerance = 2e-5;

void compare(Job job, CodePath path) {
  if (!can_run(path)) return;
  job.layout.isa = name_of(path);
  job.model.autograd = false;
  CnnCase ours(job);
  job.model.autograd = true;
  CnnCase twin(job);
  const Loss held_out = ours.forward(false), twin_held_out = twin.forward(false);
  EXPECT_NEAR(held_out.sum / twin_held_out.sum, 1, 1e-5);
  const Loss a = ours.forward(), b = twin.forward();
  EXPECT_NEAR(a.sum / b.sum, 1, 1e-5);
  EXPECT_EQ(a.count, b.count);
  ours.backward();
  twin.backward();
  expect_same_gradients(ours, twin, kTolerance);
}

void compare_all(const Job& job) {
  compare(job, CodePath::kAvx2);
  compare(job, CodePath::kAvx512);
}

TEST(CnnTwin, AgreesForEveryNormWithAndWithoutResiduals) {
  for (const char* norm : {"batch", "group", "layer", "none"}) {
    for (const bool residual : {true, false}) {
      SCOPED_TRACE(std::string(norm) + (residual ? " residual" : ""));
      Job job = small_cnn();
      job.model.norm = value_named<NormKind>(norm).value();
      job.model.residual = residual;
      compare_all(job);
    }
  }
}

TEST(CnnTwin, AgreesForEveryActivation) {
  for (const char* activation :
       {"relu", "leaky-relu", "elu", "silu", "tanh", "sigmoid", "gelu", "gelu-tanh"}) {
    for (const bool residual : {true, false}) {
      SCOPED_TRACE(activation);
      Job job = small_cnn();
      job.model.activation = value_named<Activation>(activation).value();
      job.model.residual = residual;
      compare_all(job);
    }
  }
}

TEST(CnnTwin, AgreesForBothPoolsAndDropout) {
  for (const char* pool : {"max", "average"}) {
    Job job = small_cnn();
    job.model.pool = value_named<Pool>(pool).value();
    job.model.dropout = 0.4;
    compare_all(job);
  }
}

TEST(CnnTwin, AgreesAtOddSizes) {
  for (const std::vector<int64_t>& image :
       {std::vector<int64_t>{3, 13, 11}, {1, 2, 2}, {3, 9, 34}, {2, 7, 29}, {1, 28, 28}}) {
    for (const char* norm : {"batch", "group"}) {
      SCOPED_TRACE(std::to_string(image[1]) + " x " + std::to_string(image[2]));
      Job job = small_cnn();
      job.model.image = image;
      job.model.channels = {5, 18, 35};
      job.model.norm = value_named<NormKind>(norm).value();
      compare_all(job);
    }
  }
}

TEST(CnnTwin, AgreesInDeepStages) {
  Job job = small_cnn();
  job.model.depth = 2;
  compare_all(job);
  job.model.residual = false;
  job.model.depth = 3;
  compare_all(job);
}

TEST(Cnn, GivesTheSameBitsForBothInstructionSets) {
  if (!can_run(CodePath::kAvx512)) GTEST_SKIP() << "this processor has no AVX-512";
  Job job = small_cnn();
  job.model.image = {3, 13, 17};
  job.model.channels = {20, 40};
  CnnCase narrow(job);
  job.layout.isa = "avx512";
  CnnCase wide(job);
  EXPECT_EQ(narrow.forward().sum, wide.forward().sum);
  narrow.backward();
  wide.backward();
  for (size_t b = 0; b < narrow.gradients.size(); ++b)
    EXPECT_TRUE(narrow.gradients[b].equal(wide.gradients[b])) << b;
}

TEST(Cnn, NamesBlocksAndParametersForGroupsAndBuckets) {
  const CnnCase cnn(small_cnn());
  std::vector<std::string> blocks;
  std::set<std::string> buffers;
  for (const BlockShape& block : cnn.shape.blocks) {
    blocks.push_back(block.name);
    for (const ParameterShape& p : block.parameters)
      if (p.role == Role::kMeanBuffer) buffers.insert(p.name);
  }
  EXPECT_EQ(blocks, (std::vector<std::string>{"stem", "stages.0.0", "stages.1.0", "head"}));
  EXPECT_TRUE(buffers.contains("stages.1.0.norm_shortcut.running_var"));
  EXPECT_EQ(buffers.size(), 12u);
}

TEST(Cnn, RefusesWhatItCannotBuild) {
  Job job = small_cnn();
  job.model.image = {1, 1, 8};
  EXPECT_THROW(make_cnn(job), std::exception);
  job = small_cnn();
  job.model.norm = NormKind::kRms;
  EXPECT_THROW(make_cnn(job), std::exception);
  job = small_cnn();
  job.model.image = {1, 4, 4};  // 1 x 1 after the stem's pool and the second stage
  job.train.micro_batch_size = 1;
  EXPECT_THROW(make_cnn(job), std::exception);
  job.train.micro_batch_size = 2;
  EXPECT_NO_THROW(make_cnn(job));
}

}  // namespace
}  // namespace tutti::test
