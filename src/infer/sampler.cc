// Runs the whole context for every token: simple, and fast enough for the few bytes that a run
// shows.
#include "infer/sampler.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "base/portable_math.h"
#include "config/job_parts.h"
#include "model/core/runner.h"

namespace tutti {

struct Sampler::Impl {
  Job job;
  Model model;
  ModelShape shape;
  Accounts accounts;
  std::unique_ptr<ModelRunner> runner;

  std::shared_ptr<const Tokenizer> tokenizer;  // null: bytes

  at::Device device;

  Impl(const Job& original, const MakeModel& make_model, const Units& units,
       std::shared_ptr<const Tokenizer> tokens, const RunnerOptions& options)
      : job(original), tokenizer(std::move(tokens)), device(options.device) {
    if (data_part(job).unreadable)
      throw Error(
          "the model was trained on a file of tokens: what text they stand for is not known");
    if (job.train.tensor_slices > 1)
      throw Error(fmt::format("train.tensor_slices = {}: a model in columns writes no text",
                              job.train.tensor_slices));
    job.train.micro_batch_size = 1;
    model = make_model(job);
    shape = describe(model);
    std::vector<float*> parameters;
    for (size_t b = 0; b < shape.blocks.size(); ++b)
      parameters.push_back(shape.blocks[b].unit_size > 0 ? units.parameters(static_cast<int>(b), 0)
                                                         : nullptr);
    RunnerOptions own = options;
    own.training = false;
    runner = std::make_unique<ModelRunner>(model, shape, parameters, accounts, std::move(own));
  }

  /// Tokens that can be written: the model may have room for more than the tokenizer learned.
  int64_t tokens() const {
    return tokenizer ? std::min(tokenizer->vocab(), job.model.vocab) : job.model.vocab;
  }

  std::vector<int32_t> encode(const std::string& text) const {
    if (tokenizer) return tokenizer->encode(text);
    const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
    return {bytes, bytes + text.size()};
  }
  std::string decode(int32_t token) const {
    return tokenizer ? tokenizer->decode({token}) : std::string(1, static_cast<char>(token));
  }

  /// Draws from softmax(logits / temperature).
  static int draw(const float* logits, int64_t vocab, double temperature, double uniform) {
    double top = *std::max_element(logits, logits + vocab), sum = 0;
    for (int64_t v = 0; v < vocab; ++v) sum += portable::exp((logits[v] - top) / temperature);
    double left = uniform * sum;
    for (int64_t v = 0; v < vocab; ++v) {
      left -= portable::exp((logits[v] - top) / temperature);
      if (left < 0) return static_cast<int>(v);
    }
    return static_cast<int>(vocab - 1);
  }
};

Sampler::Sampler(const Job& job, const MakeModel& make_model, const Units& units,
                 std::shared_ptr<const Tokenizer> tokenizer, const RunnerOptions& options)
    : impl_(std::make_unique<Impl>(job, make_model, units, std::move(tokenizer), options)) {}

Sampler::~Sampler() = default;

std::string Sampler::text(const std::string& prompt, int64_t length, uint64_t seed,
                          double temperature, const std::function<bool()>& enough) {
  const Job& job = impl_->job;
  if (prompt.empty()) throw Error("a sample needs a prompt of at least one byte");

  // The tensors are made once. Targets are zeros, which a forward for logits does not look at.
  int64_t context = job.model.context;
  at::Tensor tokens = at::zeros({1, context}, at::kLong),
             targets = at::zeros({1, context}, at::kLong);
  std::vector<at::Tensor> data{tokens, targets.to(impl_->device)};
  std::vector<int32_t> written = impl_->encode(prompt);
  std::string text = prompt;
  Pass pass;
  pass.training = false;

  // Every token is drawn from the logits after the last `context` tokens, by a draw keyed by its
  // number.
  const size_t whole = prompt.size() + static_cast<size_t>(length);
  for (uint64_t n = 0; text.size() < whole && !(enough && enough()); ++n) {
    const int64_t seen = std::min<int64_t>(context, static_cast<int64_t>(written.size()));
    std::copy(written.end() - seen, written.end(), tokens.data_ptr<int64_t>());
    data[0] = tokens.to(impl_->device);
    impl_->runner->forward_all(pass, data);
    const at::Tensor logits = impl_->runner->border("logits")[0][seen - 1].to(at::kCPU, at::kFloat);
    const float* row = logits.const_data_ptr<float>();
    double uniform = philox_uniform({seed, Purpose::kSample, 0, 0}, n);
    written.push_back(Impl::draw(row, impl_->tokens(), temperature, uniform));
    text += impl_->decode(written.back());
  }
  return text;
}

}  // namespace tutti
