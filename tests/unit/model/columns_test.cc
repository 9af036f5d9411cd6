// The MLP and the CNN in columns compute the function of the whole model: its loss, and of every
// gradient and proposal the columns' parts. Tolerance: both are float32, the whole sums a product's
// terms in one order and the columns' own parts in another; 2e-5 of the largest gradient in the
// block.
#include <algorithm>

#include "base/error.h"
#include "model/make_model.h"
#include "unit/model/support/cnn_case.h"
#include "unit/model/support/hand_run.h"
#include "unit/model/support/named_case.h"

namespace tutti::test {
namespace {

constexpr double kTolerance = 2e-5;

using Lists = std::vector<std::vector<at::Tensor>>;  // [block][parameter]

Lists stirred(const Model& model) {
  Lists all;
  double phase = 0;
  for (const Block& block : model.blocks) {
    auto& list = all.emplace_back();
    for (const Parameter& p : block.parameters) {
      at::Tensor values = named_case::wave(p.dims, phase += 0.7, p.dims.size() > 1 ? 0.3 : 0.2);
      list.push_back(p.dims.size() > 1 ? values
                                       : values.add_(p.name.ends_with("bias") ? 0.1 : 1.0));
    }
  }
  return all;
}

/// The parts of a whole model's lists that a column's block has, in its own order.
std::vector<at::Tensor> part_of(const Model& whole, const Lists& lists, const Model& model,
                                size_t block) {
  const auto columns = static_cast<size_t>(model.columns);
  const size_t layer = block / columns;
  std::vector<at::Tensor> parts;
  for (const Parameter& p : model.blocks[block].parameters)
    for (size_t i = 0; i < whole.blocks[layer].parameters.size(); ++i)
      if (whole.blocks[layer].parameters[i].name == p.name)
        parts.push_back(lists[layer][i].chunk(model.columns)[block % columns].contiguous());
  EXPECT_EQ(parts.size(), model.blocks[block].parameters.size());
  return parts;
}

std::vector<at::Tensor> data_of(const Model& model, int64_t classes) {
  std::vector<at::Tensor> data;
  double phase = 5;
  for (const Border& border : model.data) {
    if (border.type == at::kLong) {
      at::Tensor& ids = data.emplace_back(at::empty(border.dims, at::kLong));
      for (int64_t i = 0; i < ids.numel(); ++i)
        ids.mutable_data_ptr<int64_t>()[i] = i == 1 ? -1 : i * 5 % classes;
    } else {
      data.push_back(named_case::wave(border.dims, phase += 1));
    }
  }
  return data;
}

void expect_same_function(Job job, int64_t slices) {
  at::set_num_threads(1);
  job.train.tensor_slices = 1;
  const Model whole = make_model(job);
  job.train.tensor_slices = slices;
  const Model model = make_model(job);
  ASSERT_EQ(model.columns, slices);
  EXPECT_EQ(describe(model).parameter_count(), describe(whole).parameter_count());
  const Lists values = stirred(whole);
  Lists parts;
  for (size_t b = 0; b < model.blocks.size(); ++b)
    parts.push_back(part_of(whole, values, model, b));
  const Pass pass{.seed = 5, .step = 12, .lane = 0, .micro = 0, .first_sample = 40};
  const auto data = data_of(whole, job.model.classes);
  const HandRun run(model, parts, data, pass);
  const HandResult one = HandRun(whole, values, data, pass).run(), cut = run.run();

  EXPECT_NEAR(cut.losses[0] / one.losses[0], 1, 1e-5);
  for (const double loss : cut.losses)
    EXPECT_EQ(loss, cut.losses[0]) << "every column ends with the same loss";
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    const auto expected = part_of(whole, one.gradients, model, b);
    const size_t layer = b / static_cast<size_t>(slices);
    // of the whole block: a bias before a batch norm has a gradient of zero, but for rounding
    double top = 0;
    for (const at::Tensor& gradient : one.gradients[layer])
      top = std::max(top, gradient.abs().max().item<double>());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LT((expected[i] - cut.gradients[b][i]).abs().max().item<double>() / top, kTolerance)
          << model.blocks[b].name << "." << model.blocks[b].parameters[i].name;
    }
  }
  const HandResult split = run.run({.split = true, .in_place = false});
  for (size_t b = 0; b < model.blocks.size(); ++b)
    for (size_t i = 0; i < parts[b].size(); ++i)
      EXPECT_TRUE(same_bits(cut.gradients[b][i], split.gradients[b][i]))
          << "in two parts, block " << b;
}

Job mlp_job() {
  return named_case::resolved(R"(
[model]
kind = "mlp"
inputs = 3
hidden = [24, 12]
classes = 4
outputs = 8
dropout = 0.25
activation = "gelu"
init = "he-uniform"
[data]
kind = "points"
[train]
micro_batch_size = 6
)");
}

Job cnn_job() {
  Job job = small_cnn();
  job.model.depth = 2;
  job.model.classes = 8;
  job.model.dropout = 0.25;
  job.model.activation = Activation::kSilu;  // no kinks for rounding to cross
  job.model.pool = Pool::kAverage;
  return job;
}

TEST(Columns, OfAnMlpComputeTheWholeModel) {
  for (const int64_t slices : {2, 4})
    for (const char* norm : {"none", "batch"})
      for (const char* loss : {"cross-entropy", "mse"}) {
        SCOPED_TRACE(fmt::format("{} slices, {} norm, {}", slices, norm, loss));
        Job job = mlp_job();
        job.model.norm = value_named<NormKind>(norm).value();
        job.loss.kind = loss;
        expect_same_function(job, slices);
      }
}

TEST(Columns, OfACnnComputeTheWholeModel) {
  for (const int64_t slices : {2, 4, 8})
    for (const char* norm : {"batch", "group", "none"})
      for (const bool residual : {true, false}) {
        SCOPED_TRACE(
            fmt::format("{} slices, {} norm{}", slices, norm, residual ? ", residual" : ""));
        Job job = cnn_job();
        job.model.norm = value_named<NormKind>(norm).value();
        job.model.residual = residual;
        expect_same_function(job, slices);
      }
}

TEST(Columns, AreNamedByTheirSlice) {
  Job job = cnn_job();
  job.train.tensor_slices = 2;
  const Model model = make_model(job);
  EXPECT_EQ(model.blocks[0].name, "stem");
  EXPECT_EQ(model.blocks[1].name, "stem.slice1");
  EXPECT_EQ(model.blocks.back().name, "head.slice1");
}

std::string refusal(const Job& job) {
  try {
    make_model(job);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Columns, AreRefusedWhereALayerCannotBeCut) {
  Job mlp = mlp_job();
  mlp.train.tensor_slices = 5;
  EXPECT_EQ(refusal(mlp),
            "model.hidden = 24 cannot be cut into train.tensor_slices = 5\n"
            "model.hidden = 12 cannot be cut into train.tensor_slices = 5\n"
            "model.classes = 4 cannot be cut into train.tensor_slices = 5");
  mlp.train.tensor_slices = 2;
  mlp.model.norm = NormKind::kLayer;
  EXPECT_NE(refusal(mlp).find("model.norm = \"layer\" goes over all units"), std::string::npos);
  Job cnn = cnn_job();
  cnn.train.tensor_slices = 2;
  cnn.model.norm = NormKind::kLayer;
  EXPECT_NE(refusal(cnn).find("model.norm = \"layer\" has one group of 16 channels"),
            std::string::npos);
  cnn.model.norm = NormKind::kBatch;
  cnn.model.classes = 5;
  EXPECT_EQ(refusal(cnn), "model.classes = 5 cannot be cut into train.tensor_slices = 2");
}

}  // namespace
}  // namespace tutti::test
