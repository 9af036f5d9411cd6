#include "train/sample.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "model/runner.h"

namespace tutti {

struct Sampler::Impl {
  Job job;
  Model model;
  ModelShape shape;
  Accounts accounts;
  std::unique_ptr<ModelRunner> runner;

  Impl(const Job& original, const MakeModel& make_model, const Units& units) : job(original) {
    job.train.micro_batch_size = 1;
    model = make_model(job);
    shape = describe(model);
    std::vector<float*> parameters;
    for (size_t b = 0; b < shape.blocks.size(); ++b) parameters.push_back(units.parameters(static_cast<int>(b)));
    runner = std::make_unique<ModelRunner>(model, shape, parameters, accounts);
  }

  /// Draws from softmax(logits / temperature).
  static int draw(const float* logits, int64_t vocab, double temperature, double uniform) {
    double top = *std::max_element(logits, logits + vocab), sum = 0;
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp((logits[v] - top) / temperature);
    double left = uniform * sum;
    for (int64_t v = 0; v < vocab; ++v) {
      left -= std::exp((logits[v] - top) / temperature);
      if (left < 0) return static_cast<int>(v);
    }
    return static_cast<int>(vocab - 1);
  }
};

Sampler::Sampler(const Job& job, const MakeModel& make_model, const Units& units)
    : impl_(std::make_unique<Impl>(job, make_model, units)) {}

Sampler::~Sampler() = default;

std::string Sampler::text(const std::string& prompt, int64_t length, uint64_t seed, double temperature) {
  const Job& job = impl_->job;
  if (prompt.empty()) throw Error("a sample needs a prompt of at least one byte");
  int64_t context = job.model.context;
  at::Tensor tokens = at::zeros({1, context}, at::kLong), targets = at::zeros({1, context}, at::kLong);
  std::vector<at::Tensor> data{tokens, targets};
  std::string text = prompt;
  Pass pass;
  pass.training = false;
  for (int64_t n = 0; n < length; ++n) {
    int64_t seen = std::min<int64_t>(context, static_cast<int64_t>(text.size()));
    auto* bytes = tokens.data_ptr<int64_t>();
    for (int64_t i = 0; i < seen; ++i) bytes[i] = static_cast<uint8_t>(text[text.size() - seen + i]);
    impl_->runner->forward_all(pass, data);
    at::Tensor logits = impl_->runner->border("logits");
    const float* row = logits.data_ptr<float>() + (seen - 1) * job.model.vocab;
    double uniform = philox_uniform({seed, Purpose::kSample, 0, 0}, static_cast<uint64_t>(n));
    text.push_back(static_cast<char>(Impl::draw(row, job.model.vocab, temperature, uniform)));
  }
  return text;
}

}  // namespace tutti
