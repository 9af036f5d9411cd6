#include "model/dense/dense_layer.h"

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "model/core/deferred.h"

namespace tutti {

namespace {

constexpr float kNormEps = 1e-5f;
enum Place : int { kWeight, kBias, kNormWeight, kNormBias, kNormMean, kNormVariance };

class DenseLayer final : public Segment {
 public:
  DenseLayer(const DenseLayerConfig& config, const Kernels& kernels, const Border& in,
             const Border& out, const std::vector<Border>& passed)
      : config_(config),
        k_(kernels),
        rows_(in.dims[0]),
        width_in_(in.dims[1]),
        width_(out.dims[1]),
        inputs_{in},
        outputs_{out} {
    TUTTI_CHECK(config.norm == NormKind::kNone || normed(), "a dense layer has no norm {}",
                config.norm);
    inputs_.insert(inputs_.end(), passed.begin(), passed.end());
    outputs_.insert(outputs_.end(), passed.begin(), passed.end());
  }

  std::string name() const override { return "dense"; }
  std::vector<Border> inputs() const override { return inputs_; }
  std::vector<Border> outputs() const override { return outputs_; }
  int64_t saved_bytes() const override { return saved(Carver{}).bytes; }
  int64_t work_bytes() const override { return work(Carver{}).bytes; }
  double flops() const override {
    return 2.0 * static_cast<double>(rows_ * width_in_ * width_);  // of the matmul
  }
  bool splits() const override { return true; }
  int64_t deferred_bytes() const override {
    Carver memory;
    deferred(memory);
    return memory.bytes();
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    const auto parameter = [&](Place place) { return floats(context.parameters[place]); };
    float* result = floats(out[0]);

    // Where nothing but the activation follows, the bias is added with it.
    float* y = s.linear != nullptr ? s.linear : s.left != nullptr ? s.left : result;
    k_.matmul.nt(floats(in[0]), parameter(kWeight), y, rows_, width_, width_in_, w.scratch);
    const bool biased = s.linear != nullptr || s.left == nullptr;
    if (biased) k_.add_bias(y, parameter(kBias), rows_, width_);

    float* normal = s.left != nullptr ? s.left : result;
    if (layer_norm())
      k_.layer_norm(y, parameter(kNormWeight), parameter(kNormBias), normal, s.mean, s.rstd, rows_,
                    width_, kNormEps);
    if (rms_norm()) k_.rms_norm(y, parameter(kNormWeight), normal, s.rstd, rows_, width_, kNormEps);
    if (batch_norm()) {
      batch_statistics(context, s, y);
      k_.batch_norm(y, s.mean, s.rstd, parameter(kNormWeight), parameter(kNormBias), normal, rows_,
                    width_);
    }
    if (config_.activation)
      k_.bias_activation(s.left, biased ? nullptr : parameter(kBias), result, rows_, width_,
                         *config_.activation);

    // The backward kernel multiplies by the mask, which is what forward does, too.
    if (const Dropout dropout = dropout_of(context.pass); dropout.rate > 0)
      k_.dropout_backward(result, result, w.sums, rows_, width_, &dropout);
    pass_on(in, out);
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out,
                Tensors grad_in) const override {
    const Work w = work(Carver(context.work));
    const SideGradients sides(context.gradients);
    const float* d = back_to_linear(context, sides, floats(grad_out[0]), w.gradient);
    weight_gradient(context, d, floats(in[0]));
    input_gradient(context, d, grad_in[0]);
    pass_on(grad_out, grad_in);
  }
  void backward_input(Context& context, Tensors, Tensors, Tensors grad_out,
                      Tensors grad_in) const override {
    Carver memory(context.deferred);
    const Deferred kept = deferred(memory);
    const float* d = back_to_linear(context, kept.sides, floats(grad_out[0]), kept.gradient);
    if (d != kept.gradient) std::memcpy(kept.gradient, d, bytes_of_result());
    input_gradient(context, kept.gradient, grad_in[0]);
    pass_on(grad_out, grad_in);
  }
  void backward_weight(Context& context, Tensors in, Tensors) const override {
    Carver memory(context.deferred);
    const Deferred kept = deferred(memory);
    kept.sides.hand_over(context.gradients);
    weight_gradient(context, kept.gradient, floats(in[0]));
  }

 private:
  struct Saved;

  bool layer_norm() const { return config_.norm == NormKind::kLayer; }
  bool rms_norm() const { return config_.norm == NormKind::kRms; }
  bool batch_norm() const { return config_.norm == NormKind::kBatch; }
  bool normed() const { return layer_norm() || rms_norm() || batch_norm(); }
  size_t bytes_of_result() const { return static_cast<size_t>(rows_ * width_) * sizeof(float); }
  size_t bytes_of_columns() const { return static_cast<size_t>(width_) * sizeof(float); }

  Dropout dropout_of(const Pass& pass) const {
    return {.rate = pass.training ? config_.dropout : 0,
            .seed = pass.seed,
            .step = static_cast<uint64_t>(pass.step),
            .block = static_cast<uint32_t>(pass.block / config_.columns.count),
            .first_sample = pass.first_sample,
            .first_column = config_.columns.column * width_,
            .all_columns = config_.columns.count * width_};
  }

  /// Batch norm's mean and 1 / deviation: the micro-batch's in training, else the running ones.
  void batch_statistics(const Context& context, const Saved& s, const float* y) const {
    const float* variance = s.variance;
    if (context.pass.training) {
      k_.column_moments(y, s.mean, s.variance, rows_, width_);
    } else {
      std::memcpy(s.mean, floats(context.parameters[kNormMean]), bytes_of_columns());
      variance = floats(context.parameters[kNormVariance]);
    }
    for (int64_t c = 0; c < width_; ++c) s.rstd[c] = 1 / std::sqrt(variance[c] + kNormEps);
  }

  /// What this micro-batch proposes for the running statistics, whose variance is unbiased.
  void propose(const Context& context, const SideGradients& sides, const Saved& s) const {
    const double unbiased = static_cast<double>(rows_) / static_cast<double>(rows_ - 1);
    const auto mixed = [&](Place place, const float* seen, double factor) {
      const float* old = floats(context.parameters[place]);
      float* to = sides(place);
      for (int64_t c = 0; c < width_; ++c)
        to[c] = static_cast<float>((1 - kBatchMomentum) * static_cast<double>(old[c]) +
                                   kBatchMomentum * factor * static_cast<double>(seen[c]));
    };
    mixed(kNormMean, s.mean, 1);
    mixed(kNormVariance, s.variance, unbiased);
  }

  /// Copies what only passes by: an output may not be an input's tensor.
  void pass_on(Tensors from, Tensors to) const {
    for (size_t i = 1; i < inputs_.size(); ++i)
      if (to[i].defined()) to[i].copy_(from[i]);
  }

  /// The gradient of the linear part's result, written to `d` unless it is `dout` itself. Gradients
  /// of bias and norm go to `sides`.
  const float* back_to_linear(const Context& context, const SideGradients& sides, const float* dout,
                              float* d) const {
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    const float* from = dout;
    if (const Dropout dropout = dropout_of(context.pass); dropout.rate > 0) {
      k_.dropout_backward(from, d, w.sums, rows_, width_, &dropout);
      from = d;
    }
    const bool has_norm = normed();
    if (config_.activation) {
      k_.activation_backward(from, s.left, d, has_norm ? w.sums : sides(kBias), rows_, width_,
                             *config_.activation);
      from = d;
    }

    const float* gamma = has_norm ? floats(context.parameters[kNormWeight]) : nullptr;
    if (layer_norm())
      k_.layer_norm_backward(from, s.linear, s.mean, s.rstd, gamma, nullptr, d, sides(kNormWeight),
                             sides(kNormBias), rows_, width_);
    if (rms_norm())
      k_.rms_norm_backward(from, s.linear, s.rstd, gamma, nullptr, d, sides(kNormWeight), rows_,
                           width_);
    if (batch_norm()) {
      k_.batch_norm_backward(from, s.linear, s.mean, s.rstd, gamma, d, sides(kNormWeight),
                             sides(kNormBias), rows_, width_);
      propose(context, sides, s);
    }
    if (has_norm) from = d;
    if (has_norm || !config_.activation) k_.column_sums(from, sides(kBias), rows_, width_);
    return from;
  }

  void weight_gradient(const Context& context, const float* d, const float* x) const {
    k_.matmul.tn(d, x, floats(context.gradients[kWeight]), width_, width_in_, rows_,
                 work(Carver(context.work)).scratch);
  }

  /// Nobody wants the gradient of data.
  void input_gradient(const Context& context, const float* d, const at::Tensor& dx) const {
    if (!dx.defined()) return;
    k_.matmul.nn(d, floats(context.parameters[kWeight]), floats(dx), rows_, width_in_, width_,
                 work(Carver(context.work)).scratch);
  }

  // The layouts of memory. Without memory they only count.
  struct Saved {
    float* linear = nullptr;                 // with a norm: what it normalised
    float* left = nullptr;                   // with an activation: what its backward needs
    float *mean = nullptr, *rstd = nullptr;  // of rows, or of columns for a batch norm
    float* variance = nullptr;               // batch norm's
    int64_t bytes = 0;
  };
  Saved saved(Carver memory) const {
    Saved s;
    if (normed()) {
      s.linear = memory.floats(rows_ * width_);
      s.mean = memory.floats(batch_norm() ? width_ : rows_);
      s.rstd = memory.floats(batch_norm() ? width_ : rows_);
      s.variance = memory.floats(batch_norm() ? width_ : 0);
    }
    if (config_.activation) s.left = memory.floats(rows_ * width_);
    s.bytes = memory.bytes();
    return s;
  }
  struct Work {
    float *scratch, *gradient, *sums;
    int64_t bytes;
  };
  Work work(Carver memory) const {
    Work w{memory.floats(k_.matmul.layer_work(rows_, width_in_, width_)),
           memory.floats(rows_ * width_), memory.floats(width_), 0};
    w.bytes = memory.bytes();
    return w;
  }
  struct Deferred {
    float* gradient;
    SideGradients sides;
  };
  Deferred deferred(Carver& memory) const {
    float* gradient = memory.floats(rows_ * width_);
    SideGradients sides({{kBias, width_}}, memory);
    if (normed()) sides.add({kNormWeight, width_}, memory);
    if (layer_norm() || batch_norm()) sides.add({kNormBias, width_}, memory);
    if (batch_norm()) {
      sides.add({kNormMean, width_}, memory);
      sides.add({kNormVariance, width_}, memory);
    }
    return {gradient, std::move(sides)};
  }

  const DenseLayerConfig config_;
  const Kernels& k_;
  const int64_t rows_, width_in_, width_;
  std::vector<Border> inputs_, outputs_;
};

}  // namespace

std::unique_ptr<Segment> make_dense_layer(const DenseLayerConfig& config, const Kernels& kernels,
                                          const Border& in, const Border& out,
                                          const std::vector<Border>& passed) {
  return std::make_unique<DenseLayer>(config, kernels, in, out, passed);
}

}  // namespace tutti
