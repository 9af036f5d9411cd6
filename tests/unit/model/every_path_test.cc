// Every built-in model is computed by hand on a CPU, whole or in columns, and has the same bits of
// losses and gradients on every code path.
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include "base/fp_mode.h"
#include "base/processor.h"
#include "model/make_model.h"
#include "unit/model/support/cnn_case.h"
#include "unit/model/support/hand_run.h"
#include "unit/model/support/named_case.h"

namespace tutti::test {
namespace {

Job dense_job(const std::string& model, const std::string& loss = "") {
  return named_case::resolved(fmt::format(R"(
[model]
{}
inputs = 3
classes = 4
hidden = [24, 16]
init = "he-normal"
[loss]
{}
[data]
kind = "points"
[train]
micro_batch_size = 6
)",
                                          model, loss));
}
Job mlp_job(NormKind norm, int64_t columns) {
  Job job = dense_job("kind = \"mlp\"\ndropout = 0.25");
  job.model.norm = norm;
  job.train.tensor_slices = columns;
  return job;
}
Job values_job() {
  Job job = mlp_job(NormKind::kRms, 1);
  job.loss.kind = "huber";
  job.model.outputs = 4;
  return job;
}
Job cnn_job(NormKind norm, bool residual, int64_t columns) {
  Job job = small_cnn();
  job.model.norm = norm;
  job.model.residual = residual;
  job.model.depth = 2;
  job.model.classes = 4;
  job.model.dropout = 0.25;
  job.train.tensor_slices = columns;
  return job;
}

struct Case {
  const char* name;
  Job (*job)();
};
constexpr Case kCases[] = {
    {"Mlp", [] { return mlp_job(NormKind::kLayer, 1); }},
    {"MlpWithBatchNorm", [] { return mlp_job(NormKind::kBatch, 1); }},
    {"MlpInColumns", [] { return mlp_job(NormKind::kBatch, 2); }},
    {"MlpOfValues", values_job},
    {"Autoencoder",
     [] {
       return dense_job("kind = \"autoencoder\"\nlatent = 3\nvariational = false",
                        "kind = \"mse\"");
     }},
    {"VariationalAutoencoder",
     [] {
       return dense_job("kind = \"autoencoder\"\nlatent = 3\nvariational = true", "kind = \"bce\"");
     }},
    {"Cnn", [] { return cnn_job(NormKind::kBatch, true, 1); }},
    {"CnnInColumns", [] { return cnn_job(NormKind::kBatch, true, 2); }},
    {"PlainCnnInColumns", [] { return cnn_job(NormKind::kGroup, false, 4); }},
};

class EveryPath : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Of, EveryPath, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

HandResult run_on(const std::string& isa, Job job) {
  job.layout.isa = isa;
  const Model model = make_model(job);
  EXPECT_FALSE(by_torch(model));
  std::vector<std::vector<at::Tensor>> parameters;
  double phase = 0;
  for (const Block& block : model.blocks) {
    auto& list = parameters.emplace_back();
    for (const Parameter& p : block.parameters)
      list.push_back(named_case::wave(p.dims, phase += 0.7, 0.3).add_(p.dims.size() > 1 ? 0 : 1));
  }
  std::vector<at::Tensor> data;
  for (const Border& border : model.data)
    data.push_back(border.type == at::kLong
                       ? at::arange(6, at::kLong).remainder_(4).sub_(1).view(border.dims)
                       : named_case::wave(border.dims, phase += 1).abs_());
  const Pass pass{.seed = 5, .step = 12, .lane = 0, .micro = 0, .first_sample = 40};
  return HandRun(model, parameters, data, pass).run();
}

TEST_P(EveryPath, HasTheBitsOfTheOthers) {
  set_fp_mode();
  const Job job = GetParam().job();
  const HandResult expected = run_on("portable", job);
  EXPECT_TRUE(std::isfinite(expected.losses[0]));
  for (const CodePath path : {CodePath::kAvx512, CodePath::kAvx2}) {
    if (!can_run(path)) continue;
    const HandResult got = run_on(name_of(path), job);
    EXPECT_EQ(got.losses, expected.losses) << name_of(path);
    for (size_t b = 0; b < got.gradients.size(); ++b)
      for (size_t i = 0; i < got.gradients[b].size(); ++i)
        EXPECT_TRUE(same_bits(got.gradients[b][i], expected.gradients[b][i]))
            << name_of(path) << ", block " << b << ", parameter " << i;
  }
}

}  // namespace
}  // namespace tutti::test
