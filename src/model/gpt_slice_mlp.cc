// A column's hidden units of the GPT's mlp: a partial sum of what fc2 puts out.
#include <algorithm>

#include "model/deferred.h"
#include "model/gpt_slice_segments.h"

namespace tutti {

namespace {

template <class A>
class SliceMlp final : public Segment {
 public:
  SliceMlp(const GptSlice& slice, const KernelsFor<A>& kernels)
      : slice_(slice),
        kernels_(kernels),
        activation_(slice.whole.gated() ? Activation::kSilu : activation_of(slice.whole.activation)),
        places_(gpt_layer_places(slice.whole)),
        rows_(slice.whole.rows()),
        width_(slice.whole.width),
        hidden_(slice.hidden()),
        columns_(slice.fc1_columns()) {}

  std::string name() const override { return "mlp"; }
  std::vector<Border> inputs() const override { return {slice_.all_normed(), slice_.stream()}; }
  std::vector<Border> outputs() const override { return {slice_.part(), slice_.passed_stream()}; }
  int64_t saved_bytes() const override { return saved(Carver{}).bytes; }
  int64_t work_bytes() const override { return work(Carver{}).bytes; }
  bool splits() const override { return true; }
  int64_t deferred_bytes() const override { return between(Carver{}).bytes; }
  double flops() const override {
    return 2 * static_cast<double>(rows_) * static_cast<double>(width_) * static_cast<double>(columns_ + hidden_);
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const Saved s = saved(Carver(context.saved));
    float* scratch = work(Carver(context.work)).scratch;
    const float* bias = floats(context.parameters, places_.fc1.bias);
    kernels_.matmul.nt(data<A>(in[0]), weight<A>(context, places_.fc1.weight), s.left, rows_, columns_, width_,
                       scratch);
    if (slice_.whole.gated()) {
      kernels_.bias_swiglu(s.left, bias, s.active, rows_, hidden_);
    } else {
      kernels_.bias_activation(s.left, bias, s.active, rows_, hidden_, activation_);
    }
    kernels_.matmul.nt_sums(s.active, weight<A>(context, places_.fc2.weight), floats(out[0]), rows_, width_, hidden_,
                            scratch);
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out, Tensors grad_in) const override {
    const Work w = work(Carver(context.work));
    const A* dpart = data<A>(grad_out[0]);
    hidden_part(context, dpart, w.dfc1, SideGradients(context.gradients));
    weight_part(context, in, dpart, w.dfc1);
    input_part(context, w.dfc1, floats(grad_in[0]));  // last: it may lie where dpart does
  }
  void backward_input(Context& context, Tensors, Tensors, Tensors grad_out, Tensors grad_in) const override {
    const Between d = between(Carver(context.deferred));
    defer(grad_out[0], d.dpart);
    hidden_part(context, d.dpart, d.dfc1, d.sides);
    input_part(context, d.dfc1, floats(grad_in[0]));
  }
  void backward_weight(Context& context, Tensors in, Tensors) const override {
    const Between d = between(Carver(context.deferred));
    weight_part(context, in, d.dpart, d.dfc1);
    d.sides.hand_over(context.gradients);
  }

 private:
  void hidden_part(const Context& context, const A* dpart, A* dfc1, const SideGradients& sides) const {
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    kernels_.matmul.nn(dpart, weight<A>(context, places_.fc2.weight), w.dactive, rows_, hidden_, width_, w.scratch);
    float* dbias = sides(places_.fc1.bias);
    if (slice_.whole.gated()) {
      kernels_.swiglu_backward(w.dactive, s.left, dfc1, dbias, rows_, hidden_);
    } else {
      kernels_.activation_backward(w.dactive, s.left, dfc1, dbias, rows_, hidden_, activation_);
    }
  }
  void input_part(const Context& context, const A* dfc1, float* dnormed) const {
    kernels_.matmul.nn_sums(dfc1, weight<A>(context, places_.fc1.weight), dnormed, rows_, width_, columns_,
                            work(Carver(context.work)).scratch);
  }
  void weight_part(const Context& context, Tensors in, const A* dpart, const A* dfc1) const {
    float* scratch = work(Carver(context.work)).scratch;
    kernels_.matmul.tn(dpart, saved(Carver(context.saved)).active, floats(context.gradients, places_.fc2.weight),
                       width_, hidden_, rows_, scratch);
    kernels_.matmul.tn(dfc1, data<A>(in[0]), floats(context.gradients, places_.fc1.weight), columns_, width_, rows_,
                       scratch);
  }

  struct Saved {
    A *left, *active;  // left: what the activation leaves for its backward
    int64_t bytes;
  };
  Saved saved(Carver memory) const {
    Saved s{};
    s.left = memory.take<A>(rows_ * columns_);
    s.active = memory.take<A>(rows_ * hidden_);
    s.bytes = memory.bytes();
    return s;
  }

  struct Work {
    float* scratch;  // of the matmuls
    A *dactive, *dfc1;
    int64_t bytes;
  };
  Work work(Carver memory) const {
    Work w{};
    w.scratch = memory.floats(std::max(kernels_.matmul.layer_work(rows_, width_, columns_),
                                       kernels_.matmul.layer_work(rows_, hidden_, width_)));
    w.dactive = memory.take<A>(rows_ * hidden_);
    w.dfc1 = slice_.whole.gated() ? memory.take<A>(rows_ * columns_) : w.dactive;
    w.bytes = memory.bytes();
    return w;
  }

  /// What the input part leaves for the weight part.
  struct Between {
    SideGradients sides;
    A *dpart, *dfc1;
    int64_t bytes;
  };
  Between between(Carver memory) const {
    Between d{SideGradients({{places_.fc1.bias, columns_}}, memory), memory.take<A>(rows_ * width_),
              memory.take<A>(rows_ * columns_), 0};
    d.bytes = memory.bytes();
    return d;
  }

  GptSlice slice_;
  const KernelsFor<A>& kernels_;
  Activation activation_;
  GptLayerPlaces places_;
  int64_t rows_, width_, hidden_, columns_;
};

}  // namespace

template <class A>
std::unique_ptr<Segment> make_slice_mlp(const GptSlice& slice, const KernelsFor<A>& kernels) {
  return std::make_unique<SliceMlp<A>>(slice, kernels);
}

#define TUTTI_MAKE(A) template std::unique_ptr<Segment> make_slice_mlp(const GptSlice&, const KernelsFor<A>&);
TUTTI_FOR_ACTIVATIONS(TUTTI_MAKE)
#undef TUTTI_MAKE

}  // namespace tutti
