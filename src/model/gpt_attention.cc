// x + proj(attention(norm1(x))), by hand.
#include <algorithm>

#include "base/error.h"
#include "model/gpt_segments.h"

namespace tutti {

namespace {

using P = LayerParameters;

class GptAttention final : public Segment {
 public:
  GptAttention(const GptShape& shape, const Kernels& kernels) : shape_(shape), kernels_(kernels) {}

  std::string name() const override { return "attention"; }
  std::vector<Border> inputs() const override { return {gpt_stream(shape_)}; }
  std::vector<Border> outputs() const override { return {gpt_stream(shape_)}; }
  int64_t saved_bytes() const override { return saved(Carver{}).bytes; }
  int64_t work_bytes() const override { return work(Carver{}).bytes; }
  double flops() const override {
    const double rows = static_cast<double>(shape_.rows()), width = static_cast<double>(shape_.width);
    return 2 * rows * width * (3 * width + width) + 2 * rows * static_cast<double>(shape_.length + 1) * width;
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const int64_t rows = shape_.rows(), width = shape_.width;
    const Saved s = saved(Carver(context.saved));
    float* scratch = work(Carver(context.work)).scratch;
    const float* x = floats(in[0]);
    float* y = floats(out[0]);
    const auto p = [&](int i) { return floats(context.parameters[i]); };
    const Dropout dropout = gpt_dropout(shape_, context.pass, GptDropoutSite::kAttention);
    kernels_.layer_norm(x, p(P::kNorm1), p(P::kNorm1Bias), s.normal, s.mean, s.rstd, rows, width, kGptNormEps);
    kernels_.matmul.nt(s.normal, p(P::kQkv), s.qkv, rows, 3 * width, width, scratch);
    kernels_.attention(s.qkv, p(P::kQkvBias), s.mixed, s.lse, scratch, shape_.attention());
    kernels_.matmul.nt(s.mixed, p(P::kProj), y, rows, width, width, scratch);
    kernels_.bias_residual(y, p(P::kProjBias), x, y, rows, width, &dropout);
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out, Tensors grad_in) const override {
    const int64_t rows = shape_.rows(), width = shape_.width;
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    const float* dy = floats(grad_out[0]);
    const auto p = [&](int i) { return floats(context.parameters[i]); };
    const auto g = [&](int i) { return floats(context.gradients[i]); };
    const Dropout dropout = gpt_dropout(shape_, context.pass, GptDropoutSite::kAttention);
    kernels_.dropout_backward(dy, w.narrow, g(P::kProjBias), rows, width, &dropout);
    const float* dproj = dropout.rate == 0 ? dy : w.narrow;
    kernels_.matmul.nn(dproj, p(P::kProj), w.dmixed, rows, width, width, w.scratch);
    kernels_.matmul.tn(dproj, s.mixed, g(P::kProj), width, width, rows, w.scratch);
    kernels_.attention_backward(w.dmixed, s.qkv, s.mixed, s.lse, w.dqkv, g(P::kQkvBias), w.scratch, shape_.attention());
    kernels_.matmul.nn(w.dqkv, p(P::kQkv), w.narrow, rows, width, 3 * width, w.scratch);
    kernels_.matmul.tn(w.dqkv, s.normal, g(P::kQkv), 3 * width, width, rows, w.scratch);
    float* dx = grad_in[0].defined() ? floats(grad_in[0]) : w.narrow;
    kernels_.layer_norm_backward(w.narrow, floats(in[0]), s.mean, s.rstd, p(P::kNorm1), dy, dx, g(P::kNorm1),
                                 g(P::kNorm1Bias), rows, width);
  }

 private:
  struct Saved {
    float *normal, *qkv, *mixed, *mean, *rstd, *lse;
    int64_t bytes;
  };
  Saved saved(Carver memory) const {
    const int64_t rows = shape_.rows(), width = shape_.width;
    Saved s{};
    s.normal = memory.floats(rows * width);
    s.qkv = memory.floats(rows * 3 * width);
    s.mixed = memory.floats(rows * width);
    s.mean = memory.floats(rows);
    s.rstd = memory.floats(rows);
    s.lse = memory.floats(rows * shape_.heads);
    s.bytes = memory.bytes();
    return s;
  }

  struct Work {
    float* scratch;  // of whichever kernel runs
    float* narrow;   // first the gradient behind dropout, then that of the norm's output
    float *dmixed, *dqkv;
    int64_t bytes;
  };
  Work work(Carver memory) const {
    const int64_t rows = shape_.rows(), width = shape_.width;
    Work w{};
    w.scratch = memory.floats(
        std::max({kernels_.attention_work(shape_.attention()), kernels_.matmul.layer_work(rows, width, 3 * width),
                  kernels_.matmul.layer_work(rows, width, width)}));
    w.narrow = memory.floats(rows * width);
    w.dmixed = memory.floats(rows * width);
    w.dqkv = memory.floats(rows * 3 * width);
    w.bytes = memory.bytes();
    return w;
  }

  GptShape shape_;
  const Kernels& kernels_;
};

}  // namespace

std::unique_ptr<Segment> make_gpt_attention(const GptShape& shape, const Kernels& kernels) {
  return std::make_unique<GptAttention>(shape, kernels);
}

float* Carver::floats(int64_t count) {
  const int64_t at = used_;
  used_ += (count * static_cast<int64_t>(sizeof(float)) + 63) / 64 * 64;
  if (memory_ == nullptr) return nullptr;
  TUTTI_CHECK(used_ <= size_, "a segment uses {} bytes of the {} it asked for", used_, size_);
  return reinterpret_cast<float*>(memory_ + at);
}

}  // namespace tutti
