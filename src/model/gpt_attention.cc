// x + proj(attention(norm1(x))), by hand; heads of queries may share heads of keys and values, and positions may be
// rotary.
#include <algorithm>

#include "model/gpt_segments.h"

namespace tutti {

namespace {

template <class A>
class GptAttention final : public Segment {
 public:
  GptAttention(const GptShape& shape, const KernelsFor<A>& kernels, const RotaryTable& rotary)
      : shape_(shape),
        kernels_(kernels),
        rotary_(rotary),
        places_(gpt_layer_places(shape)),
        norm_(shape_, kernels, places_.norm1) {}

  std::string name() const override { return "attention"; }
  std::vector<Border> inputs() const override { return {gpt_stream(shape_)}; }
  std::vector<Border> outputs() const override { return {gpt_stream(shape_)}; }
  int64_t saved_bytes() const override { return saved(Carver{}).bytes; }
  int64_t work_bytes() const override { return work(Carver{}).bytes; }
  double flops() const override {
    const double rows = static_cast<double>(shape_.rows()), width = static_cast<double>(shape_.width);
    return 2 * rows * width * (static_cast<double>(columns()) + width) +
           2 * rows * static_cast<double>(shape_.length + 1) * width;
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const int64_t rows = shape_.rows(), width = shape_.width;
    const Saved s = saved(Carver(context.saved));
    float* scratch = work(Carver(context.work)).scratch;
    const A* x = data<A>(in[0]);
    A* y = data<A>(out[0]);
    const auto p = [&](int place) { return floats(context.parameters, place); };
    const Dropout dropout = gpt_dropout(shape_, context.pass, GptDropoutSite::kAttention);
    norm_.forward(context, x, s.norm);
    kernels_.matmul.nt(s.norm.normal, weight<A>(context, places_.qkv.weight), s.qkv, rows, columns(), width, scratch);
    const float* bias = p(places_.qkv.bias);
    if (rotary_.defined()) {
      kernels_.rotary(s.qkv, bias, floats(rotary_), rotary_shape());
      bias = nullptr;
    }
    kernels_.attention(s.qkv, bias, s.mixed, s.lse, scratch, shape_.attention());
    kernels_.matmul.nt(s.mixed, weight<A>(context, places_.proj.weight), y, rows, width, width, scratch);
    kernels_.bias_residual(y, p(places_.proj.bias), x, y, rows, width, &dropout);
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out, Tensors grad_in) const override {
    const int64_t rows = shape_.rows(), width = shape_.width;
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    const A* dy = data<A>(grad_out[0]);
    const auto g = [&](int place) { return floats(context.gradients, place); };
    const Dropout dropout = gpt_dropout(shape_, context.pass, GptDropoutSite::kAttention);
    kernels_.dropout_backward(dy, w.narrow, g(places_.proj.bias), rows, width, &dropout);
    const A* dproj = dropout.rate == 0 ? dy : w.narrow;
    kernels_.matmul.nn(dproj, weight<A>(context, places_.proj.weight), w.dmixed, rows, width, width, w.scratch);
    kernels_.matmul.tn(dproj, s.mixed, g(places_.proj.weight), width, width, rows, w.scratch);
    float* dbias = g(places_.qkv.bias);
    kernels_.attention_backward(w.dmixed, s.qkv, s.mixed, s.lse, w.dqkv, rotary_.defined() ? nullptr : dbias, w.scratch,
                                shape_.attention());
    if (rotary_.defined()) kernels_.rotary_backward(w.dqkv, floats(rotary_), dbias, rotary_shape());
    kernels_.matmul.nn(w.dqkv, weight<A>(context, places_.qkv.weight), w.narrow, rows, width, columns(), w.scratch);
    kernels_.matmul.tn(w.dqkv, s.norm.normal, g(places_.qkv.weight), columns(), width, rows, w.scratch);
    A* dx = grad_in[0].defined() ? data<A>(grad_in[0]) : w.narrow;
    norm_.backward(context, w.narrow, data<A>(in[0]), s.norm, dy, dx);
  }

 private:
  int64_t columns() const { return shape_.attention().columns(); }
  /// Queries and keys are turned, values are not.
  RotaryShape rotary_shape() const {
    return {shape_.batch, shape_.length, shape_.heads + shape_.kv_heads, shape_.dim(), columns()};
  }

  struct Saved {
    typename GptNorm<A>::Saved norm;
    A *qkv, *mixed;  // qkv: after bias and rotation
    float* lse;
    int64_t bytes;
  };
  Saved saved(Carver memory) const {
    const int64_t rows = shape_.rows();
    Saved s{};
    s.norm = norm_.saved(memory);
    s.qkv = memory.take<A>(rows * columns());
    s.mixed = memory.take<A>(rows * shape_.width);
    s.lse = memory.floats(rows * shape_.heads);
    s.bytes = memory.bytes();
    return s;
  }

  struct Work {
    float* scratch;  // of whichever kernel runs
    A* narrow;       // first the gradient behind dropout, then that of the norm's output
    A *dmixed, *dqkv;
    int64_t bytes;
  };
  Work work(Carver memory) const {
    const int64_t rows = shape_.rows(), width = shape_.width;
    Work w{};
    w.scratch = memory.floats(
        std::max({kernels_.attention_work(shape_.attention()), kernels_.matmul.layer_work(rows, width, columns()),
                  kernels_.matmul.layer_work(rows, width, width)}));
    w.narrow = memory.take<A>(rows * width);
    w.dmixed = memory.take<A>(rows * width);
    w.dqkv = memory.take<A>(rows * columns());
    w.bytes = memory.bytes();
    return w;
  }

  GptShape shape_;
  const KernelsFor<A>& kernels_;
  RotaryTable rotary_;
  GptLayerPlaces places_;
  GptNorm<A> norm_;
};

}  // namespace

template <class A>
std::unique_ptr<Segment> make_gpt_attention(const GptShape& shape, const KernelsFor<A>& kernels,
                                            const RotaryTable& rotary) {
  return std::make_unique<GptAttention<A>>(shape, kernels, rotary);
}

#define TUTTI_MAKE(A) \
  template std::unique_ptr<Segment> make_gpt_attention(const GptShape&, const KernelsFor<A>&, const RotaryTable&);
TUTTI_FOR_ACTIVATIONS(TUTTI_MAKE)
#undef TUTTI_MAKE

}  // namespace tutti
