// x + proj(attention(norm1(x))), by hand; heads of queries may share heads of keys and values, and positions may be
// rotary.
#include <algorithm>

#include "model/deferred.h"
#include "model/gpt_linear.h"
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
  bool splits() const override { return true; }
  int64_t deferred_bytes() const override { return between(Carver{}).bytes; }
  bool attention() const override { return true; }
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
    norm_.forward(context, x, s.norm);
    const GptLinear<A> qkv{context, kernels_, places_.qkv, rows, columns(), width, scratch};
    const float* bias = qkv.forward(s.norm.normal, s.qkv);
    if (rotary_.defined()) {
      kernels_.rotary(s.qkv, bias, floats(rotary_), rotary_shape());
      bias = nullptr;
    }
    kernels_.attention(s.qkv, bias, s.mixed, s.lse, scratch, shape_.attention());
    const GptLinear<A> proj{context, kernels_, places_.proj, rows, width, width, scratch};
    proj.forward_residual(s.mixed, x, data<A>(out[0]), gpt_dropout(shape_, context.pass, GptDropoutSite::kAttention));
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out, Tensors grad_in) const override {
    const Work w = work(Carver(context.work));
    run_backward(context, in, grad_out, grad_in, {SideGradients(context.gradients), w.narrow, w.dqkv, 0}, true);
  }
  void backward_input(Context& context, Tensors in, Tensors, Tensors grad_out, Tensors grad_in) const override {
    run_backward(context, in, grad_out, grad_in, between(Carver(context.deferred)), false);
  }
  void backward_weight(Context& context, Tensors, Tensors) const override {
    const Between d = between(Carver(context.deferred));
    proj_weight(context, d.dproj);
    qkv_weight(context, d.dqkv);
    d.sides.hand_over(context.gradients);
  }

 private:
  /// What the input part leaves for the weight part.
  struct Between {
    SideGradients sides;
    A* dproj;  // behind dropout
    A* dqkv;
    int64_t bytes;
  };
  Between between(Carver memory) const {
    const int64_t width = shape_.width;
    Between d{SideGradients({{places_.norm1.weight, width},
                             {places_.norm1.bias, width},
                             {places_.qkv.bias, columns()},
                             {places_.proj.bias, width}},
                            memory),
              memory.take<A>(shape_.rows() * width), memory.take<A>(shape_.rows() * columns()), 0};
    d.bytes = memory.bytes();
    return d;
  }

  /// The input part, and if `whole` the weight part's products as soon as they can be made: then dproj and grad_out,
  /// which the input's gradient may overwrite, need no memory of their own.
  void run_backward(const Context& context, Tensors in, Tensors grad_out, Tensors grad_in, const Between& d,
                    bool whole) const {
    const int64_t rows = shape_.rows(), width = shape_.width;
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    const A* dy = data<A>(grad_out[0]);
    const Dropout dropout = gpt_dropout(shape_, context.pass, GptDropoutSite::kAttention);
    kernels_.dropout_backward(dy, d.dproj, d.sides(places_.proj.bias), rows, width, &dropout);
    if (dropout.rate == 0 && !whole) defer(grad_out[0], d.dproj);
    const A* dproj = dropout.rate == 0 ? dy : d.dproj;
    kernels_.matmul.nn(dproj, weight<A>(context, places_.proj.weight), w.dmixed, rows, width, width, w.scratch);
    if (whole) proj_weight(context, dproj);
    float* dbias = d.sides(places_.qkv.bias);
    kernels_.attention_backward(w.dmixed, s.qkv, s.mixed, s.lse, d.dqkv, rotary_.defined() ? nullptr : dbias, w.scratch,
                                shape_.attention());
    if (rotary_.defined()) kernels_.rotary_backward(d.dqkv, floats(rotary_), dbias, rotary_shape());
    kernels_.matmul.nn(d.dqkv, weight<A>(context, places_.qkv.weight), w.narrow, rows, width, columns(), w.scratch);
    if (whole) qkv_weight(context, d.dqkv);
    A* dx = grad_in[0].defined() ? data<A>(grad_in[0]) : w.narrow;
    norm_.backward(context, d.sides, w.narrow, data<A>(in[0]), s.norm, dy, dx);
  }

  void proj_weight(const Context& context, const A* dproj) const {
    kernels_.matmul.tn(dproj, saved(Carver(context.saved)).mixed, floats(context.gradients, places_.proj.weight),
                       shape_.width, shape_.width, shape_.rows(), work(Carver(context.work)).scratch);
  }
  void qkv_weight(const Context& context, const A* dqkv) const {
    kernels_.matmul.tn(dqkv, saved(Carver(context.saved)).norm.normal, floats(context.gradients, places_.qkv.weight),
                       columns(), shape_.width, shape_.rows(), work(Carver(context.work)).scratch);
  }

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
