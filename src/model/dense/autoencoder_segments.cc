#include "model/dense/autoencoder_segments.h"

#include <string>
#include <utility>

#include "base/portable_math.h"
#include "model/core/carver.h"
#include "model/dense/keyed_normals.h"
#include "model/loss/loss.h"

namespace tutti {

namespace {

class Code final : public Segment {
 public:
  Code(Border linear, Border code, Border kl)
      : latent_(code.dims[1]),
        variational_(linear.dims[1] == 2 * latent_),
        in_(std::move(linear)),
        code_(std::move(code)),
        kl_(std::move(kl)) {}

  std::string name() const override { return "code"; }
  std::vector<Border> inputs() const override { return {in_}; }
  std::vector<Border> outputs() const override { return {code_, kl_}; }
  bool splits() const override { return true; }
  /// The noise that training drew.
  int64_t saved_bytes() const override {
    return variational_ ? rows() * latent_ * static_cast<int64_t>(sizeof(float)) : 0;
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    if (!variational_) {
      out[0].copy_(in[0]);
      out[1].zero_();
      return;
    }
    const float* x = floats(in[0]);
    float *code = floats(out[0]), *kl = floats(out[1]), *noise = noise_of(context);
    if (context.pass.training) draw_keyed_normals(context.pass, rows(), latent_, noise);
    for (int64_t r = 0; r < rows(); ++r, x += 2 * latent_) {
      double divergence = 0;
      for (int64_t i = 0; i < latent_; ++i) {
        const double mean = x[i], log_variance = x[latent_ + i];
        divergence += mean * mean + portable::exp(log_variance) - log_variance - 1;
        const double off =
            context.pass.training ? portable::exp(0.5 * log_variance) * noise[r * latent_ + i] : 0;
        code[r * latent_ + i] = static_cast<float>(mean + off);
      }
      kl[r] = static_cast<float>(0.5 * divergence);
    }
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out,
                Tensors grad_in) const override {
    if (!grad_in[0].defined()) return;
    if (!variational_) {
      grad_in[0].copy_(grad_out[0]);
      return;
    }
    const float *x = floats(in[0]), *dcode = floats(grad_out[0]), *dkl = floats(grad_out[1]),
                *noise = noise_of(context);
    float* dx = floats(grad_in[0]);
    for (int64_t r = 0; r < rows(); ++r, x += 2 * latent_, dx += 2 * latent_) {
      for (int64_t i = 0; i < latent_; ++i) {
        const double d = dcode[r * latent_ + i], of_kl = dkl[r], log_variance = x[latent_ + i];
        const double off = portable::exp(0.5 * log_variance) * noise[r * latent_ + i];
        dx[i] = static_cast<float>(d + of_kl * x[i]);
        dx[latent_ + i] =
            static_cast<float>(0.5 * (d * off + of_kl * (portable::exp(log_variance) - 1)));
      }
    }
  }
  void backward_input(Context& context, Tensors in, Tensors out, Tensors grad_out,
                      Tensors grad_in) const override {
    backward(context, in, out, grad_out, grad_in);
  }
  void backward_weight(Context&, Tensors, Tensors) const override {}

 private:
  int64_t rows() const { return in_.dims[0]; }
  float* noise_of(const Context& context) const {
    return reinterpret_cast<float*>(context.saved.data());
  }

  const int64_t latent_;
  const bool variational_;
  const Border in_, code_, kl_;
};

double probability(double logit) { return 1 / (1 + portable::exp(-logit)); }

class Reconstruction final : public Segment {
 public:
  Reconstruction(const Border& output, Border values, bool logits, std::optional<Compared> compared)
      : logits_(logits),
        compared_(std::move(compared)),
        inputs_{output},
        outputs_{std::move(values), {"loss", {2}, at::kDouble}} {
    if (compared_) inputs_ = {output, compared_->features, compared_->targets, compared_->kl};
  }

  std::string name() const override { return "reconstruction"; }
  std::vector<Border> inputs() const override { return inputs_; }
  std::vector<Border> outputs() const override { return outputs_; }
  bool splits() const override { return true; }

  void forward(Context&, Tensors in, Tensors out) const override {
    const float* x = floats(in[0]);
    float* values = floats(out[0]);
    for (int64_t i = 0; i < in[0].numel(); ++i)
      values[i] = logits_ ? static_cast<float>(probability(x[i])) : x[i];

    // Row by row in order, and in a row element by element.
    double sum = 0, divergence = 0;
    int64_t count = 0;
    if (compared_) {
      const float *features = floats(in[1]), *kl = floats(in[3]);
      for (int64_t r = 0; r < rows(); ++r) {
        if (ids(in[2])[r] == kIgnoredTarget) continue;
        for (int64_t i = r * width(); i < (r + 1) * width(); ++i)
          sum += compared_->element.loss(x[i], features[i], compared_->config);
        divergence += kl[r];
        count += width();
      }
      sum += compared_->config.kl * divergence;
    }
    auto* loss = data<double>(out[1]);
    loss[0] = sum;
    loss[1] = static_cast<double>(count);
  }

  void backward(Context& context, Tensors in, Tensors, Tensors, Tensors grad_in) const override {
    const double scale = context.loss_scale == nullptr ? 1 : *context.loss_scale;
    for (const at::Tensor& gradient : grad_in)
      if (gradient.defined()) gradient.zero_();
    if (!compared_) return;
    for (int64_t r = 0; r < rows(); ++r) {
      if (ids(in[2])[r] == kIgnoredTarget) continue;
      if (grad_in[3].defined())
        floats(grad_in[3])[r] = static_cast<float>(scale * compared_->config.kl);
      if (!grad_in[0].defined()) continue;
      for (int64_t i = r * width(); i < (r + 1) * width(); ++i)
        floats(grad_in[0])[i] =
            static_cast<float>(scale * compared_->element.slope(floats(in[0])[i], floats(in[1])[i],
                                                                compared_->config));
    }
  }
  void backward_input(Context& context, Tensors in, Tensors out, Tensors grad_out,
                      Tensors grad_in) const override {
    backward(context, in, out, grad_out, grad_in);
  }
  void backward_weight(Context&, Tensors, Tensors) const override {}

 private:
  int64_t rows() const { return inputs_[0].dims[0]; }
  int64_t width() const { return inputs_[0].dims[1]; }

  const bool logits_;
  const std::optional<Compared> compared_;
  std::vector<Border> inputs_, outputs_;
};

}  // namespace

std::unique_ptr<Segment> make_code(const Border& linear, const Border& code, const Border& kl) {
  return std::make_unique<Code>(linear, code, kl);
}

std::unique_ptr<Segment> make_reconstruction(const Border& output, const Border& values,
                                             bool logits, std::optional<Compared> compared) {
  return std::make_unique<Reconstruction>(output, values, logits, std::move(compared));
}

}  // namespace tutti
