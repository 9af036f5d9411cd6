// x + fc2(f(fc1(norm2(x)))), by hand; f is an activation, or silu(gate) * up of the two halves of what fc1 puts out.
#include <algorithm>

#include "model/deferred.h"
#include "model/gpt_linear.h"
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
  bool splits() const override { return true; }
  int64_t deferred_bytes() const override { return between(Carver{}).bytes; }
  double flops() const override {
    return 2 * static_cast<double>(shape_.rows()) * static_cast<double>(shape_.width) *
           static_cast<double>(shape_.fc1_columns() + shape_.hidden);
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const Saved s = saved(Carver(context.saved));
    float* scratch = work(Carver(context.work)).scratch;
    const A* x = data<A>(in[0]);
    const GptLinear<A> fc1 = this->fc1(context, scratch);
    norm_.forward(context, x, s.norm);
    if (shape_.gated()) {
      const float* bias = fc1.forward(s.norm.normal, s.left);
      kernels_.bias_swiglu(s.left, bias, s.active, shape_.rows(), shape_.hidden);
    } else {
      fc1.forward_activation(s.norm.normal, s.left, s.active, activation_);
    }
    fc2(context, scratch)
        .forward_residual(s.active, x, data<A>(out[0]), gpt_dropout(shape_, context.pass, GptDropoutSite::kMlp));
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out, Tensors grad_in) const override {
    const Work w = work(Carver(context.work));
    run_backward(context, in, grad_out, grad_in, {SideGradients(context.gradients), w.narrow, w.dfc1, 0}, true);
  }
  void backward_input(Context& context, Tensors in, Tensors, Tensors grad_out, Tensors grad_in) const override {
    run_backward(context, in, grad_out, grad_in, between(Carver(context.deferred)), false);
  }
  void backward_weight(Context& context, Tensors, Tensors) const override {
    const Between d = between(Carver(context.deferred));
    fc2_weight(context, d.dfc2);
    fc1_weight(context, d.dfc1);
    d.sides.hand_over(context.gradients);
  }

 private:
  /// What the input part leaves for the weight part.
  struct Between {
    SideGradients sides;
    A* dfc2;  // behind dropout
    A* dfc1;
    int64_t bytes;
  };
  Between between(Carver memory) const {
    const int64_t width = shape_.width;
    Between d{SideGradients({{places_.norm2.weight, width},
                             {places_.norm2.bias, width},
                             {places_.fc1.bias, shape_.fc1_columns()},
                             {places_.fc2.bias, width}},
                            memory),
              memory.take<A>(shape_.rows() * width), memory.take<A>(shape_.rows() * shape_.fc1_columns()), 0};
    d.bytes = memory.bytes();
    return d;
  }

  /// The input part, and if `whole` the weight part's products as soon as they can be made: then dfc2 and grad_out,
  /// which the input's gradient may overwrite, need no memory of their own.
  void run_backward(const Context& context, Tensors in, Tensors grad_out, Tensors grad_in, const Between& d,
                    bool whole) const {
    const int64_t rows = shape_.rows(), width = shape_.width, hidden = shape_.hidden;
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    const A* dy = data<A>(grad_out[0]);
    const Dropout dropout = gpt_dropout(shape_, context.pass, GptDropoutSite::kMlp);
    kernels_.dropout_backward(dy, d.dfc2, d.sides(places_.fc2.bias), rows, width, &dropout);
    if (dropout.rate == 0 && !whole) defer(grad_out[0], d.dfc2);
    const A* dfc2 = dropout.rate == 0 ? dy : d.dfc2;
    float* dbias = d.sides(places_.fc1.bias);
    if (shape_.gated()) {
      kernels_.matmul.nn(dfc2, weight<A>(context, places_.fc2.weight), w.dactive, rows, hidden, width, w.scratch);
      kernels_.swiglu_backward(w.dactive, s.left, d.dfc1, dbias, rows, hidden);
    } else {
      fc2(context, w.scratch).backward_activation(dfc2, s.left, d.dfc1, dbias, activation_);
    }
    if (whole) fc2_weight(context, dfc2);
    kernels_.matmul.nn(d.dfc1, weight<A>(context, places_.fc1.weight), w.narrow, rows, width, shape_.fc1_columns(),
                       w.scratch);
    if (whole) fc1_weight(context, d.dfc1);
    A* dx = grad_in[0].defined() ? data<A>(grad_in[0]) : w.narrow;
    norm_.backward(context, d.sides, w.narrow, data<A>(in[0]), s.norm, dy, dx);
  }

  GptLinear<A> fc1(const Context& context, float* scratch) const {
    return {context, kernels_, places_.fc1, shape_.rows(), shape_.fc1_columns(), shape_.width, scratch};
  }
  GptLinear<A> fc2(const Context& context, float* scratch) const {
    return {context, kernels_, places_.fc2, shape_.rows(), shape_.width, shape_.hidden, scratch};
  }

  void fc2_weight(const Context& context, const A* dfc2) const {
    kernels_.matmul.tn(dfc2, saved(Carver(context.saved)).active, floats(context.gradients, places_.fc2.weight),
                       shape_.width, shape_.hidden, shape_.rows(), work(Carver(context.work)).scratch);
  }
  void fc1_weight(const Context& context, const A* dfc1) const {
    kernels_.matmul.tn(dfc1, saved(Carver(context.saved)).norm.normal, floats(context.gradients, places_.fc1.weight),
                       shape_.fc1_columns(), shape_.width, shape_.rows(), work(Carver(context.work)).scratch);
  }

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
    A* dactive;      // where the activation is gated
    A* dfc1;
    int64_t bytes;
  };
  Work work(Carver memory) const {
    const int64_t rows = shape_.rows(), width = shape_.width;
    Work w{};
    w.scratch = memory.floats(std::max(kernels_.matmul.layer_work(rows, width, shape_.fc1_columns()),
                                       kernels_.matmul.layer_work(rows, shape_.hidden, width)));
    w.narrow = memory.take<A>(rows * width);
    w.dactive = memory.take<A>(shape_.gated() ? rows * shape_.hidden : 0);
    w.dfc1 = memory.take<A>(rows * shape_.fc1_columns());
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
