// x + fc2(f(fc1(norm2(x)))), by hand; f is an activation, or silu(gate) * up of the two halves of what fc1 puts out.
#include <algorithm>

#include "model/gpt_segments.h"

namespace tutti {

namespace {

template <class A>
class GptMlp final : public Segment {
 public:
  GptMlp(const GptShape& shape, const KernelsFor<A>& kernels)
      : shape_(shape),
        kernels_(kernels),
        activation_(shape.gated() ? Activation::kSilu : activation_of(shape.activation)),
        places_(gpt_layer_places(shape)),
        norm_(shape_, kernels, places_.norm2) {}

  std::string name() const override { return "mlp"; }
  std::vector<Border> inputs() const override { return {gpt_stream(shape_)}; }
  std::vector<Border> outputs() const override { return {gpt_stream(shape_)}; }
  int64_t saved_bytes() const override { return saved(Carver{}).bytes; }
  int64_t work_bytes() const override { return work(Carver{}).bytes; }
  double flops() const override {
    return 2 * static_cast<double>(shape_.rows()) * static_cast<double>(shape_.width) *
           static_cast<double>(shape_.fc1_columns() + shape_.hidden);
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const int64_t rows = shape_.rows(), width = shape_.width, hidden = shape_.hidden;
    const Saved s = saved(Carver(context.saved));
    float* scratch = work(Carver(context.work)).scratch;
    const A* x = data<A>(in[0]);
    A* y = data<A>(out[0]);
    const auto p = [&](int place) { return floats(context.parameters, place); };
    const Dropout dropout = gpt_dropout(shape_, context.pass, GptDropoutSite::kMlp);
    norm_.forward(context, x, s.norm);
    kernels_.matmul.nt(s.norm.normal, weight<A>(context, places_.fc1.weight), s.left, rows, shape_.fc1_columns(), width,
                       scratch);
    if (shape_.gated()) {
      kernels_.bias_swiglu(s.left, p(places_.fc1.bias), s.active, rows, hidden);
    } else {
      kernels_.bias_activation(s.left, p(places_.fc1.bias), s.active, rows, hidden, activation_);
    }
    kernels_.matmul.nt(s.active, weight<A>(context, places_.fc2.weight), y, rows, width, hidden, scratch);
    kernels_.bias_residual(y, p(places_.fc2.bias), x, y, rows, width, &dropout);
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out, Tensors grad_in) const override {
    const int64_t rows = shape_.rows(), width = shape_.width, hidden = shape_.hidden;
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    const A* dy = data<A>(grad_out[0]);
    const auto g = [&](int place) { return floats(context.gradients, place); };
    const Dropout dropout = gpt_dropout(shape_, context.pass, GptDropoutSite::kMlp);
    kernels_.dropout_backward(dy, w.narrow, g(places_.fc2.bias), rows, width, &dropout);
    const A* dfc2 = dropout.rate == 0 ? dy : w.narrow;
    kernels_.matmul.nn(dfc2, weight<A>(context, places_.fc2.weight), w.dactive, rows, hidden, width, w.scratch);
    kernels_.matmul.tn(dfc2, s.active, g(places_.fc2.weight), width, hidden, rows, w.scratch);
    if (shape_.gated()) {
      kernels_.swiglu_backward(w.dactive, s.left, w.dfc1, g(places_.fc1.bias), rows, hidden);
    } else {
      kernels_.activation_backward(w.dactive, s.left, w.dfc1, g(places_.fc1.bias), rows, hidden, activation_);
    }
    kernels_.matmul.nn(w.dfc1, weight<A>(context, places_.fc1.weight), w.narrow, rows, width, shape_.fc1_columns(),
                       w.scratch);
    kernels_.matmul.tn(w.dfc1, s.norm.normal, g(places_.fc1.weight), shape_.fc1_columns(), width, rows, w.scratch);
    A* dx = grad_in[0].defined() ? data<A>(grad_in[0]) : w.narrow;
    norm_.backward(context, w.narrow, data<A>(in[0]), s.norm, dy, dx);
  }

 private:
  struct Saved {
    typename GptNorm<A>::Saved norm;
    A *left, *active;  // left: what the activation leaves for its backward
    int64_t bytes;
  };
  Saved saved(Carver memory) const {
    Saved s{};
    s.norm = norm_.saved(memory);
    s.left = memory.take<A>(shape_.rows() * shape_.fc1_columns());
    s.active = memory.take<A>(shape_.rows() * shape_.hidden);
    s.bytes = memory.bytes();
    return s;
  }

  struct Work {
    float* scratch;  // of the matmuls
    A* narrow;       // first the gradient behind dropout, then that of the norm's output
    A *dactive, *dfc1;
    int64_t bytes;
  };
  Work work(Carver memory) const {
    const int64_t rows = shape_.rows(), width = shape_.width;
    Work w{};
    w.scratch = memory.floats(std::max(kernels_.matmul.layer_work(rows, width, shape_.fc1_columns()),
                                       kernels_.matmul.layer_work(rows, shape_.hidden, width)));
    w.narrow = memory.take<A>(rows * width);
    w.dactive = memory.take<A>(rows * shape_.hidden);
    w.dfc1 = shape_.gated() ? memory.take<A>(rows * shape_.fc1_columns()) : w.dactive;
    w.bytes = memory.bytes();
    return w;
  }

  GptShape shape_;
  const KernelsFor<A>& kernels_;
  Activation activation_;
  GptLayerPlaces places_;
  GptNorm<A> norm_;
};

}  // namespace

template <class A>
std::unique_ptr<Segment> make_gpt_mlp(const GptShape& shape, const KernelsFor<A>& kernels) {
  return std::make_unique<GptMlp<A>>(shape, kernels);
}

#define TUTTI_MAKE(A) template std::unique_ptr<Segment> make_gpt_mlp(const GptShape&, const KernelsFor<A>&);
TUTTI_FOR_ACTIVATIONS(TUTTI_MAKE)
#undef TUTTI_MAKE

}  // namespace tutti
