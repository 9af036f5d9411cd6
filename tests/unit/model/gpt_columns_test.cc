// The GPT in columns against the whole one with the same weights. Tolerance: both are float32;
// heads, hidden units and tokens are summed in other orders, over up to 128 terms and two layers
// deep, as between the GPT and its twin: 2e-5 of a gradient's largest value.
#include "model/gpt/gpt_columns.h"

#include <functional>

#include "base/error.h"
#include "unit/model/support/columns_case.h"
#include "unit/model/support/gpt_case.h"

namespace tutti::test {
namespace {

constexpr double kTolerance = 2e-5;

CodePath isa() { return fastest_path(); }

/// Four heads, and rows (3 samples of 24) that columns cut in the middle of a sample.
ModelConfig four_heads(ModelConfig c = small_gpt()) {
  c.heads = 4;
  c.vocab = 24;
  return c;
}
ModelConfig four_heads_llama() {
  ModelConfig c = four_heads(small_llama());
  c.kv_heads = 4;
  return c;
}

/// What column c of a model in columns has of a whole parameter (or its gradient), as gpt_columns.h
/// says.
at::Tensor part_of(const std::string& name, const at::Tensor& whole, const ModelConfig& config,
                   int64_t slices, int64_t column) {
  const auto rows = [&](const at::Tensor& t) {
    const int64_t size = t.size(0) / slices;
    return t.narrow(0, column * size, size);
  };
  if (name.starts_with("qkv.")) {
    const int64_t dim = config.width / config.heads, kv = (whole.size(0) - config.width) / 2;
    const auto queries = whole.narrow(0, 0, dim * config.heads);
    const auto keys = whole.narrow(0, config.width, kv),
               values = whole.narrow(0, config.width + kv, kv);
    return at::cat({rows(queries), rows(keys), rows(values)});
  }
  if (name.starts_with("fc1.") && config.activation == Activation::kSwiglu) {
    const int64_t half = whole.size(0) / 2;
    return at::cat({rows(whole.narrow(0, 0, half)), rows(whole.narrow(0, half, half))});
  }
  if (name.starts_with("fc1.") || name.starts_with("tok.") || name.starts_with("head."))
    return rows(whole);
  if (name == "proj.weight" || name == "fc2.weight") return rows(whole.t()).t().contiguous();
  return whole;
}

class GptColumnsCase : public ColumnsCase {
 public:
  /// It has the weights and data of `whole`.
  GptColumnsCase(const Job& job, int64_t slices, const GptCase& whole, CodePath isa,
                 MatmulKind matmul = MatmulKind::kOwn)
      : GptColumnsCase(job, slices, whole, kernels(isa, matmul)) {}
  /// The table must outlive it.
  GptColumnsCase(const Job& job, int64_t slices, const GptCase& whole, const Kernels& table)
      : ColumnsCase(make_gpt(with(job, slices), table)), config(job.model), slices(slices) {
    data = whole.data;
    each([&](int block, const ParameterShape& p, const std::string& name, int unsliced,
             const ParameterShape& q) {
      const at::Tensor values = whole.values[unsliced].narrow(0, q.offset, q.size).view(q.dims);
      value(block, p).copy_(part_of(name, values, config, slices, block % slices));
    });
  }

  void expect_gradients_of(const GptCase& whole) const {
    each([&](int block, const ParameterShape& p, const std::string& name, int unsliced,
             const ParameterShape& q) {
      at::Tensor sum = whole.gradients[unsliced].narrow(0, q.offset, q.size).clone();
      for (const int64_t extra : q.extra_gradients)
        sum += whole.gradients[unsliced].narrow(0, extra, q.size);
      const at::Tensor expected = part_of(name, sum.view(q.dims), config, slices, block % slices);
      const double top = sum.abs().max().item<double>();
      const double worst = (total_gradient(block, p) - expected).abs().max().item<double>();
      EXPECT_LT(worst / top, kTolerance) << p.name;
    });
  }

  /// Calls f for every parameter that a block owns, with its name in the block and its place in the
  /// whole model.
  template <class F>
  void each(F&& f) const {
    const ModelShape unsliced = describe(make_gpt(with({}, 1), kernels(isa())));
    for (size_t b = 0; b < shape.blocks.size(); ++b) {
      const int layer = static_cast<int>(b) / static_cast<int>(slices);
      for (const ParameterShape& p : shape.blocks[b].parameters) {
        const std::string name = p.name.substr(shape.blocks[b].name.size() + 1);
        for (const ParameterShape& q : unsliced.blocks[layer].parameters)
          if (q.name == unsliced.blocks[layer].name + "." + name)
            f(static_cast<int>(b), p, name, layer, q);
      }
    }
  }

  ModelConfig config;
  int64_t slices;

 private:
  Job with(Job job, int64_t count) const {
    if (job.model.kind.empty()) job = gpt_job(config, GptCase::kBatch);
    job.train.tensor_slices = count;
    return job;
  }
};

void compare(const ModelConfig& config, int64_t slices, CodePath isa,
             MatmulKind matmul = MatmulKind::kOwn) {
  if (!can_run(isa)) return;
  SCOPED_TRACE(slices);
  const Job job = gpt_job(config, GptCase::kBatch);
  GptCase whole(job, isa, matmul);
  GptColumnsCase columns(job, slices, whole, isa, matmul);
  const Loss a = columns.forward(), b = whole.forward();
  EXPECT_NEAR(a.sum / b.sum, 1, 2e-6);
  EXPECT_EQ(a.count, b.count);
  whole.backward();
  columns.backward();
  columns.expect_gradients_of(whole);
}

void compare_all(const ModelConfig& config) {
  for (const int64_t slices : {2, 4}) {
    compare(config, slices, CodePath::kAvx2);
    compare(config, slices, CodePath::kAvx512);
    compare(config, slices, isa(), MatmulKind::kMkl);
  }
}

TEST(GptColumns, ComputeWhatTheWholeModelDoes) { compare_all(four_heads()); }

TEST(GptColumns, ComputeWhatTheWholeModelDoesTied) {
  ModelConfig c = four_heads();
  c.tied = true;
  compare_all(c);
}

TEST(GptColumns, ComputeWhatTheWholeLlamaDoes) {
  compare_all(four_heads_llama());
  ModelConfig c = four_heads(small_llama());
  c.kv_heads = 2;
  c.tied = true;
  compare(c, 2, isa());
}

TEST(GptColumns, DrawTheWholeModelsDropout) {
  ModelConfig c = four_heads();
  c.dropout = 0.2;
  compare_all(c);
  c = four_heads_llama();
  c.dropout = 0.2;
  compare_all(c);
}

TEST(GptColumns, MayBeThreeOfOddSizes) {
  ModelConfig c = four_heads();
  c.heads = 3;
  c.width = 42;
  c.mlp_width = 33;
  c.vocab = 27;
  c.context = 5;
  c.dropout = 0.1;
  compare(c, 3, CodePath::kAvx2);
  compare(c, 3, CodePath::kAvx512);
}

struct Option {
  std::string name;
  std::function<void(ModelConfig&)> set;
};

// Every set of six options in two columns of one layer, at sizes that are no multiples of a vector.
TEST(GptColumns, ComputeWhatTheWholeModelDoesInEveryCombinationOfOptions) {
  const std::vector<Option> options = {
      {"rotary", [](ModelConfig& c) { c.positions = Positions::kRotary; }},
      {"rms", [](ModelConfig& c) { c.norm = NormKind::kRms; }},
      {"swiglu", [](ModelConfig& c) { c.activation = Activation::kSwiglu; }},
      {"two heads of keys", [](ModelConfig& c) { c.kv_heads = 2; }},
      {"no biases", [](ModelConfig& c) { c.bias = false; }},
      {"tied", [](ModelConfig& c) { c.tied = true; }},
  };
  for (size_t set = 0; set < size_t{1} << options.size(); ++set) {
    ModelConfig c = four_heads();
    c.layers = 1;
    c.width = 24;
    c.context = 18;
    c.vocab = 14;
    std::string names;
    for (size_t i = 0; i < options.size(); ++i) {
      if ((set >> i & 1) == 0) continue;
      options[i].set(c);
      names += options[i].name + ", ";
    }
    SCOPED_TRACE(names);
    compare(c, 2, set % 3 == 0 ? CodePath::kAvx2 : CodePath::kAvx512);
  }
}

TEST(GptColumns, LeaveNothingForTargetsBelowZero) {
  const Job job = gpt_job(four_heads(), GptCase::kBatch);
  GptCase whole(job, isa());
  whole.targets.fill_(-1);
  GptColumnsCase columns(job, 2, whole, isa());
  const Loss loss = columns.forward();
  EXPECT_EQ(loss.sum, 0);
  EXPECT_EQ(loss.count, 0);
  columns.backward();
  for (size_t b = 0; b < columns.shape.blocks.size(); ++b)
    for (const ParameterShape& p : columns.shape.blocks[b].parameters)
      EXPECT_EQ(columns.total_gradient(static_cast<int>(b), p).abs().max().item<float>(), 0)
          << p.name;
}

// Central differences of a float32 loss of about 20: the step of 1e-2 leaves an error of about 1e-3
// from rounding and curvature.
void expect_slopes(ModelConfig c) {
  c.layers = 1;
  c.width = 8;
  c.context = 4;
  c.vocab = 6;
  const Job job = gpt_job(c, GptCase::kBatch);
  const GptCase whole(job, isa());
  GptColumnsCase columns(job, 2, whole, isa());
  columns.forward();
  columns.backward();
  for (size_t b = 0; b < columns.shape.blocks.size(); ++b) {
    for (const ParameterShape& p : columns.shape.blocks[b].parameters) {
      const at::Tensor gradient = columns.total_gradient(static_cast<int>(b), p).view({-1});
      const double top = std::max(0.5, gradient.abs().max().item<double>());
      for (int64_t i = 0; i < p.size; i += std::max<int64_t>(1, p.size / 5)) {
        float& value = columns.values[b].mutable_data_ptr<float>()[p.offset + i];
        const float kept = value;
        value = kept + 1e-2f;
        const double up = columns.forward().sum;
        value = kept - 1e-2f;
        const double down = columns.forward().sum;
        value = kept;
        EXPECT_NEAR((up - down) / 2e-2 / top, gradient[i].item<double>() / top, 1e-2)
            << p.name << " " << i;
      }
    }
  }
}

TEST(GptColumns, HaveGradientsThatAreTheSlopeOfTheLoss) {
  expect_slopes(small_gpt());
  ModelConfig c = small_llama();
  c.tied = true;
  expect_slopes(c);
}

TEST(GptColumns, GiveEqualBitsAgainAndInTwoParts) {
  for (ModelConfig c : {four_heads(), four_heads_llama()}) {
    for (const double dropout : {0.0, 0.1}) {
      c.dropout = dropout;
      c.tied = dropout == 0;
      const Job job = gpt_job(c, GptCase::kBatch);
      const GptCase whole(job, isa());
      GptColumnsCase once(job, 2, whole, isa()), parts(job, 2, whole, isa());
      EXPECT_EQ(once.forward().sum, parts.forward().sum);
      once.backward();
      parts.backward(true);
      for (size_t b = 0; b < once.gradients.size(); ++b)
        EXPECT_TRUE(once.gradients[b].equal(parts.gradients[b])) << once.shape.blocks[b].name;
    }
  }
}

TEST(GptColumns, LeaveTheFusedKernelsToTheWholeModel) {
  static int calls = 0;
  const auto refuse = [](auto...) {
    ++calls;
    return false;
  };
  Kernels table = kernels(isa());
  table.fused = {refuse, refuse, refuse};
  const Job job = gpt_job(four_heads(), GptCase::kBatch);
  GptCase whole(job, table);
  GptColumnsCase columns(job, 2, whole, table);
  columns.forward();
  columns.backward();
  EXPECT_EQ(calls, 0);
  whole.forward();
  whole.backward();
  EXPECT_EQ(calls, job.model.layers * 5);  // four linear layers forward, and the activation back
}

TEST(GptColumns, ShareWhatIsAddedToRowsAndCutTheRest) {
  ModelConfig c = four_heads();
  c.tied = true;
  Job job = gpt_job(c, 2);
  job.train.tensor_slices = 2;
  const Model model = make_gpt(job, kernels(isa()));
  EXPECT_EQ(model.columns, 2);
  std::vector<std::string> names, shared;
  for (const Block& block : model.blocks) {
    names.push_back(block.name);
    if (!block.name.ends_with(".slice1")) continue;
    for (const Parameter& p : block.parameters)
      if (!p.shared_with.empty() && !block.name.starts_with("blocks.1"))
        shared.push_back(p.shared_with);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"embed", "embed.slice1", "blocks.0", "blocks.0.slice1",
                                      "blocks.1", "blocks.1.slice1", "head", "head.slice1"}));
  EXPECT_EQ(shared, (std::vector<std::string>{"embed/pos.weight", "blocks.0/norm1.weight",
                                              "blocks.0/norm1.bias", "blocks.0/proj.bias",
                                              "blocks.0/norm2.weight", "blocks.0/norm2.bias",
                                              "blocks.0/fc2.bias", "head/norm.weight",
                                              "head/norm.bias", "embed.slice1/tok.weight"}));
  job.train.tensor_slices = 1;
  EXPECT_EQ(describe(model).parameter_count(),
            describe(make_gpt(job, kernels(isa()))).parameter_count());
}

TEST(GptColumns, DrawTheirFirstValuesWithTheWholeMatrixsDeviation) {
  ModelConfig c = four_heads();
  c.width = 128;
  c.init = InitKind::kHeNormal;
  Job job = gpt_job(c, 2);
  job.train.tensor_slices = 4;
  const Model model = make_gpt(job, kernels(isa()));
  const Parameter& fc2 = model.blocks[5].parameters[gpt_layer_places(gpt_shape(c, 2)).fc2.weight];
  ASSERT_EQ(fc2.dims, (std::vector<int64_t>{128, 128}));
  const at::Tensor values = at::empty(fc2.dims, at::kFloat);
  initialise(fc2, "a name", 1,
             {values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel())});
  EXPECT_NEAR(values.std().item<double>(), std::sqrt(2.0 / 512), 0.02 * std::sqrt(2.0 / 512));
}

TEST(GptColumns, RefuseWhatCannotBeCut) {
  const auto message = [](auto change) {
    Job job = gpt_job(four_heads(), 3);
    job.train.tensor_slices = 2;
    change(job);
    try {
      make_gpt(job, kernels(isa()));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message([](Job&) {}), "accepted");
  EXPECT_EQ(
      message([](Job& job) {
        job.model.kv_heads = 1;
        job.model.mlp_width = 7;
        job.model.vocab = 29;
        job.model.context = 5;
      }),
      "model.kv_heads = 1 cannot be cut into train.tensor_slices = 2\n"
      "model.mlp_width = 7 cannot be cut into train.tensor_slices = 2\n"
      "model.vocab = 29 cannot be cut into train.tensor_slices = 2\n"
      "train.micro_batch_size x model.context = 15 cannot be cut into train.tensor_slices = 2");
  EXPECT_EQ(
      message([](Job& job) { job.loss.label_smoothing = 0.1; }),
      "train.tensor_slices = 2 needs loss.kind = \"cross-entropy\" without smoothing and weights");
  EXPECT_EQ(message([](Job& job) { job.model.autograd = true; }),
            "train.tensor_slices = 2 but model.autograd is true: it has no columns");
}

TEST(GptColumns, RefuseADeviceWithoutTheirKernels) {
  Job job = gpt_job(four_heads(), 2);
  job.train.tensor_slices = 2;
  job.numerics.device = DeviceKind::kCuda;
  Kernels without = kernels(isa());
  without.vocabulary = {};
  try {
    make_gpt(job, without);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "train.tensor_slices = 2 but numerics.device = \"cuda\" has no kernels for "
                 "slices of a vocabulary");
  }
}

}  // namespace
}  // namespace tutti::test
