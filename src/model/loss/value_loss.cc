#include "model/loss/value_loss.h"

#include <cmath>
#include <string>
#include <utility>

namespace tutti {

namespace {

class ValueLoss final : public Segment {
 public:
  ValueLoss(const ElementLoss& element, LossConfig config, Border output, Border targets)
      : element_(element),
        config_(std::move(config)),
        inputs_{std::move(output), std::move(targets)} {}

  std::string name() const override { return config_.kind; }
  std::vector<Border> inputs() const override { return inputs_; }
  std::vector<Border> outputs() const override { return {{"loss", {2}, at::kDouble}}; }
  bool splits() const override { return true; }

  void forward(Context&, Tensors in, Tensors out) const override {
    const auto *x = in[0].const_data_ptr<float>(), *t = in[1].const_data_ptr<float>();
    double sum = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < in[0].numel(); ++i) {
      if (std::isnan(t[i])) continue;
      sum += element_.loss(x[i], t[i], config_);
      ++count;
    }
    double* result = out[0].mutable_data_ptr<double>();
    result[0] = sum;
    result[1] = static_cast<double>(count);
  }

  void backward(Context& context, Tensors in, Tensors, Tensors, Tensors grad_in) const override {
    if (!grad_in[0].defined()) return;
    const double scale = context.loss_scale == nullptr ? 1 : *context.loss_scale;
    const auto *x = in[0].const_data_ptr<float>(), *t = in[1].const_data_ptr<float>();
    auto* gradient = grad_in[0].mutable_data_ptr<float>();
    for (int64_t i = 0; i < in[0].numel(); ++i)
      gradient[i] =
          std::isnan(t[i]) ? 0.0f : static_cast<float>(scale * element_.slope(x[i], t[i], config_));
  }
  void backward_input(Context& context, Tensors in, Tensors out, Tensors grad_out,
                      Tensors grad_in) const override {
    backward(context, in, out, grad_out, grad_in);
  }
  void backward_weight(Context&, Tensors, Tensors) const override {}

 private:
  const ElementLoss element_;
  const LossConfig config_;
  const std::vector<Border> inputs_;
};

}  // namespace

std::unique_ptr<Segment> make_value_loss(const ElementLoss& element, const LossConfig& config,
                                         Border output, Border targets) {
  return std::make_unique<ValueLoss>(element, config, std::move(output), std::move(targets));
}

}  // namespace tutti
