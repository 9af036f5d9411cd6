// The autoencoder against its formulas in ATen, its keyed noise, and its decoder.
#include "model/dense/autoencoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/philox.h"
#include "model/make_model.h"
#include "unit/model/support/named_case.h"

namespace tutti {
namespace {

using namespace named_case;  // NOLINT(google-build-using-namespace)

Job autoencoder_job(const std::string& more = "") {
  return resolved(R"(
[model]
kind = "autoencoder"
inputs = 6
hidden = [9, 5]
latent = 2
activation = "tanh"
init = "glorot-uniform"
)" + more + R"(
[data]
kind = "points"
[train]
micro_batch_size = 4
)");
}

constexpr Pass kPass{7, 3, 0, 0, 40, 0, true};

at::Tensor noise_of(const Pass& pass, int64_t rows, int64_t width) {
  at::Tensor values = at::empty({rows, width});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < width; ++i)
      values[r][i] = philox_normal(
          {pass.seed, Purpose::kLatent, static_cast<uint64_t>(pass.first_sample + r), 0},
          static_cast<uint64_t>(i));
  return values;
}

const std::vector<std::string> kNames = {"encoder.0.weight", "encoder.0.bias", "encoder.1.weight",
                                         "encoder.1.bias",   "code.weight",    "code.bias",
                                         "decoder.0.weight", "decoder.0.bias", "decoder.1.weight",
                                         "decoder.1.bias",   "output.weight",  "output.bias"};

struct Answer {
  at::Tensor output, reconstruction, divergence;  // the two sums over rows that count
};

Answer reference(const std::vector<at::Tensor>& p, const at::Tensor& x, const at::Tensor& valid,
                 const Pass& pass, bool variational, bool bce) {
  const auto layer = [&](const at::Tensor& in, size_t i) { return at::linear(in, p[i], p[i + 1]); };
  at::Tensor code = layer(layer(layer(x, 0).tanh(), 2).tanh(), 4), divergence = at::zeros({});
  if (variational) {
    const at::Tensor mean = code.narrow(1, 0, 2), log_variance = code.narrow(1, 2, 2);
    divergence =
        (-0.5 * (1 + log_variance - mean * mean - log_variance.exp()).sum(1) * valid).sum();
    code = pass.training ? mean + (log_variance * 0.5).exp() * noise_of(pass, x.size(0), 2) : mean;
  }
  const at::Tensor output = layer(layer(layer(code, 6).tanh(), 8).tanh(), 10);
  const at::Tensor each =
      bce ? at::binary_cross_entropy_with_logits(output, x, {}, {}, at::Reduction::None)
          : at::mse_loss(output, x, at::Reduction::None);
  return {output, (each * valid.unsqueeze(1)).sum(), divergence};
}

TEST(Autoencoder, LossIsReconstructionPlusTheWeightedDivergence) {
  for (const bool variational : {true, false}) {
    for (const char* loss : {"mse", "bce"}) {
      SCOPED_TRACE(std::string(loss) + (variational ? " variational" : ""));
      Job job = autoencoder_job();
      job.model.variational = variational;
      job.loss.kind = loss;
      job.loss.kl = 0.3;
      FlatModel flat(make_model(job), 5);
      stir(flat);
      const std::vector<int64_t> padding = {3, 0, 2, -1};
      const std::vector<at::Tensor> data = {wave({4, 6}, 0).abs(), at::tensor(padding)};
      flat.runner->forward_all(kPass, data);
      flat.runner->backward_all(kPass, data, flat.gradient_pointers);

      std::vector<at::Tensor> p;
      for (const std::string& name : kNames) p.push_back(leaf(flat, name));
      const at::Tensor valid = data[1].ne(-1).to(at::kFloat);
      const Answer answer =
          reference(p, data[0], valid, kPass, variational, std::string(loss) == "bce");
      const at::Tensor sum = answer.reconstruction + 0.3 * answer.divergence;
      EXPECT_EQ(flat.runner->loss().count, 18);  // of three rows
      EXPECT_NEAR(flat.runner->loss().sum, sum.item<double>(),
                  1e-5 * (1 + std::abs(sum.item<double>())));
      const at::Tensor values =
          std::string(loss) == "bce" ? answer.output.sigmoid() : answer.output;
      // float32 sums in another order
      EXPECT_TRUE(near(flat.runner->border("values"), values, 1e-5));
      const auto grads = torch::autograd::grad({sum}, p);
      for (size_t i = 0; i < p.size(); ++i)
        EXPECT_TRUE(near(gradient(flat, kNames[i]), grads[i], 1e-4)) << kNames[i];
    }
  }
}

TEST(Autoencoder, NoiseIsKeyedByTheSampleWhateverItsMicroBatch) {
  const at::Tensor all = wave({8, 6}, 0);
  const auto codes = [&](int64_t rows, int64_t first, int64_t step) {
    Job job = autoencoder_job();
    job.train.micro_batch_size = rows;
    FlatModel flat(make_model(job), 5);
    const std::vector<at::Tensor> data = {all.narrow(0, first, rows).contiguous(),
                                          at::zeros({rows}, at::kLong)};
    Pass pass = kPass;
    pass.step = step;
    pass.first_sample = 100 + first;
    flat.runner->forward_all(pass, data);
    return flat.runner->border("code").clone();
  };
  const at::Tensor whole = codes(8, 0, 3);
  for (int64_t rows : {1, 2, 4})
    for (int64_t first = 0; first < 8; first += rows)  // a matmul of few rows may round otherwise
      EXPECT_TRUE(near(codes(rows, first, 3), whole.narrow(0, first, rows), 1e-6))
          << rows << " " << first;
}

TEST(Autoencoder, AnEvaluationDrawsNothing) {
  FlatModel flat(make_model(autoencoder_job()), 5);
  const std::vector<at::Tensor> data = {wave({4, 6}, 0), at::zeros({4}, at::kLong)};
  Pass pass = kPass;
  pass.training = false;
  flat.runner->forward_all(pass, data);
  const at::Tensor code = flat.runner->border("code").clone();
  pass.first_sample += 1000;
  flat.runner->forward_all(pass, data);
  EXPECT_TRUE(at::equal(flat.runner->border("code"), code));
  pass.training = true;
  flat.runner->forward_all(pass, data);
  EXPECT_FALSE(at::equal(flat.runner->border("code"), code));
}

TEST(Autoencoder, ItsDecoderGivesTheValuesOfTheWholeModelBitForBit) {
  for (const char* loss : {"mse", "bce"}) {
    Job job = autoencoder_job("norm = \"layer\"\n");
    job.loss.kind = loss;
    FlatModel whole(make_model(job), 5), decoder(make_decoder(job), 6);
    stir(whole);
    for (const BlockShape& block : decoder.shape.blocks)
      for (const ParameterShape& p : block.parameters)
        value(decoder, p.name).copy_(value(whole, p.name));
    Pass pass = kPass;
    pass.training = false;
    whole.runner->forward_all(pass,
                              std::vector<at::Tensor>{wave({4, 6}, 0), at::zeros({4}, at::kLong)});
    const at::Tensor code = whole.runner->border("code").clone();
    decoder.runner->forward_all(pass, std::vector<at::Tensor>{code, at::zeros({4}, at::kLong)});
    EXPECT_TRUE(at::equal(decoder.runner->border("values"), whole.runner->border("values")))
        << loss;
  }
}

TEST(Autoencoder, IsMeasuredByItsReconstruction) {
  const Model model = make_model(autoencoder_job());
  EXPECT_EQ(model.task, Task::kReconstruct);
  EXPECT_EQ(model.output, "values");
  std::vector<std::string> names;
  for (const Block& block : model.blocks) names.push_back(block.name);
  EXPECT_EQ(names, (std::vector<std::string>{"encoder.0", "encoder.1", "code", "decoder.0",
                                             "decoder.1", "output"}));
  EXPECT_EQ(model.blocks[2].parameters[0].dims, (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(model.blocks[3].parameters[0].dims, (std::vector<int64_t>{5, 2}));
}

}  // namespace
}  // namespace tutti
