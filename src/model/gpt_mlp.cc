// x + fc2(gelu(fc1(norm2(x)))), by hand.
#include <algorithm>

#include "model/gpt_segments.h"

namespace tutti {

namespace {

using P = LayerParameters;

class GptMlp final : public Segment {
 public:
  GptMlp(const GptShape& shape, const Kernels& kernels) : shape_(shape), kernels_(kernels) {}

  std::string name() const override { return "mlp"; }
  std::vector<Border> inputs() const override { return {gpt_stream(shape_)}; }
  std::vector<Border> outputs() const override { return {gpt_stream(shape_)}; }
  int64_t saved_bytes() const override { return saved(Carver{}).bytes; }
  int64_t work_bytes() const override { return work(Carver{}).bytes; }
  double flops() const override {
    const double rows = static_cast<double>(shape_.rows()), width = static_cast<double>(shape_.width);
    return 2 * rows * width * 4 * width * 2;
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const int64_t rows = shape_.rows(), width = shape_.width, hidden = 4 * width;
    const Saved s = saved(Carver(context.saved));
    float* scratch = work(Carver(context.work)).scratch;
    const float* x = floats(in[0]);
    float* y = floats(out[0]);
    const auto p = [&](int i) { return floats(context.parameters[i]); };
    const Dropout dropout = gpt_dropout(shape_, context.pass, GptDropoutSite::kMlp);
    kernels_.layer_norm(x, p(P::kNorm2), p(P::kNorm2Bias), s.normal, s.mean, s.rstd, rows, width, kGptNormEps);
    kernels_.matmul.nt(s.normal, p(P::kFc1), s.derivative, rows, hidden, width, scratch);
    kernels_.bias_gelu(s.derivative, p(P::kFc1Bias), s.active, rows, hidden, shape_.gelu);
    kernels_.matmul.nt(s.active, p(P::kFc2), y, rows, width, hidden, scratch);
    kernels_.bias_residual(y, p(P::kFc2Bias), x, y, rows, width, &dropout);
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out, Tensors grad_in) const override {
    const int64_t rows = shape_.rows(), width = shape_.width, hidden = 4 * width;
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    const float* dy = floats(grad_out[0]);
    const auto p = [&](int i) { return floats(context.parameters[i]); };
    const auto g = [&](int i) { return floats(context.gradients[i]); };
    const Dropout dropout = gpt_dropout(shape_, context.pass, GptDropoutSite::kMlp);
    kernels_.dropout_backward(dy, w.narrow, g(P::kFc2Bias), rows, width, &dropout);
    const float* dfc2 = dropout.rate == 0 ? dy : w.narrow;
    kernels_.matmul.nn(dfc2, p(P::kFc2), w.dactive, rows, hidden, width, w.scratch);
    kernels_.matmul.tn(dfc2, s.active, g(P::kFc2), width, hidden, rows, w.scratch);
    kernels_.gelu_backward(w.dactive, s.derivative, w.dactive, g(P::kFc1Bias), rows, hidden);
    kernels_.matmul.nn(w.dactive, p(P::kFc1), w.narrow, rows, width, hidden, w.scratch);
    kernels_.matmul.tn(w.dactive, s.normal, g(P::kFc1), hidden, width, rows, w.scratch);
    float* dx = grad_in[0].defined() ? floats(grad_in[0]) : w.narrow;
    kernels_.layer_norm_backward(w.narrow, floats(in[0]), s.mean, s.rstd, p(P::kNorm2), dy, dx, g(P::kNorm2),
                                 g(P::kNorm2Bias), rows, width);
  }

 private:
  struct Saved {
    float *normal, *derivative, *active, *mean, *rstd;
    int64_t bytes;
  };
  Saved saved(Carver memory) const {
    const int64_t rows = shape_.rows(), width = shape_.width;
    Saved s{};
    s.normal = memory.floats(rows * width);
    s.derivative = memory.floats(rows * 4 * width);
    s.active = memory.floats(rows * 4 * width);
    s.mean = memory.floats(rows);
    s.rstd = memory.floats(rows);
    s.bytes = memory.bytes();
    return s;
  }

  struct Work {
    float* scratch;  // of the matmuls
    float* narrow;   // first the gradient behind dropout, then that of the norm's output
    float* dactive;
    int64_t bytes;
  };
  Work work(Carver memory) const {
    const int64_t rows = shape_.rows(), width = shape_.width;
    Work w{};
    w.scratch = memory.floats(std::max(kernels_.matmul.layer_work(rows, width, 4 * width),
                                       kernels_.matmul.layer_work(rows, 4 * width, width)));
    w.narrow = memory.floats(rows * width);
    w.dactive = memory.floats(rows * 4 * width);
    w.bytes = memory.bytes();
    return w;
  }

  GptShape shape_;
  const Kernels& kernels_;
};

}  // namespace

std::unique_ptr<Segment> make_gpt_mlp(const GptShape& shape, const Kernels& kernels) {
  return std::make_unique<GptMlp>(shape, kernels);
}

}  // namespace tutti
