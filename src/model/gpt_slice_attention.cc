// A column's heads of the GPT's attention: a partial sum of what all heads put out.
#include <algorithm>

#include "model/deferred.h"
#include "model/gpt_slice_segments.h"

namespace tutti {

namespace {

template <class A>
class SliceAttention final : public Segment {
 public:
  SliceAttention(const GptSlice& slice, const KernelsFor<A>& kernels, const RotaryTable& rotary)
      : slice_(slice),
        kernels_(kernels),
        rotary_(rotary),
        places_(gpt_layer_places(slice.whole)),
        rows_(slice.whole.rows()),
        width_(slice.whole.width),
        columns_(slice.attention().columns()) {}

  std::string name() const override { return "attention"; }
  std::vector<Border> inputs() const override { return {slice_.all_normed(), slice_.stream()}; }
  std::vector<Border> outputs() const override { return {slice_.part(), slice_.passed_stream()}; }
  int64_t saved_bytes() const override { return saved(Carver{}).bytes; }
  int64_t work_bytes() const override { return work(Carver{}).bytes; }
  bool splits() const override { return true; }
  int64_t deferred_bytes() const override { return between(Carver{}).bytes; }
  bool attention() const override { return true; }
  double flops() const override {
    const double rows = static_cast<double>(rows_), mixed = static_cast<double>(slice_.mixed());
    return 2 * rows * static_cast<double>(width_) * (static_cast<double>(columns_) + mixed) +
           2 * rows * static_cast<double>(slice_.whole.length + 1) * mixed;
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const Saved s = saved(Carver(context.saved));
    float* scratch = work(Carver(context.work)).scratch;
    kernels_.matmul.nt(data<A>(in[0]), weight<A>(context, places_.qkv.weight), s.qkv, rows_, columns_, width_, scratch);
    const float* bias = floats(context.parameters, places_.qkv.bias);
    if (rotary_.defined()) {
      kernels_.rotary(s.qkv, bias, floats(rotary_), rotary_shape());
      bias = nullptr;
    }
    kernels_.attention(s.qkv, bias, s.mixed, s.lse, scratch, slice_.attention());
    kernels_.matmul.nt_sums(s.mixed, weight<A>(context, places_.proj.weight), floats(out[0]), rows_, width_,
                            slice_.mixed(), scratch);
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out, Tensors grad_in) const override {
    const Work w = work(Carver(context.work));
    const A* dpart = data<A>(grad_out[0]);
    attention_part(context, dpart, w.dqkv, SideGradients(context.gradients));
    weight_part(context, in, dpart, w.dqkv);
    input_part(context, w.dqkv, floats(grad_in[0]));  // last: it may lie where dpart does
  }
  void backward_input(Context& context, Tensors, Tensors, Tensors grad_out, Tensors grad_in) const override {
    const Between d = between(Carver(context.deferred));
    defer(grad_out[0], d.dpart);
    attention_part(context, d.dpart, d.dqkv, d.sides);
    input_part(context, d.dqkv, floats(grad_in[0]));
  }
  void backward_weight(Context& context, Tensors in, Tensors) const override {
    const Between d = between(Carver(context.deferred));
    weight_part(context, in, d.dpart, d.dqkv);
    d.sides.hand_over(context.gradients);
  }

 private:
  void attention_part(const Context& context, const A* dpart, A* dqkv, const SideGradients& sides) const {
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    kernels_.matmul.nn(dpart, weight<A>(context, places_.proj.weight), w.dmixed, rows_, slice_.mixed(), width_,
                       w.scratch);
    float* dbias = sides(places_.qkv.bias);
    kernels_.attention_backward(w.dmixed, s.qkv, s.mixed, s.lse, dqkv, rotary_.defined() ? nullptr : dbias, w.scratch,
                                slice_.attention());
    if (rotary_.defined()) kernels_.rotary_backward(dqkv, floats(rotary_), dbias, rotary_shape());
  }
  void input_part(const Context& context, const A* dqkv, float* dnormed) const {
    kernels_.matmul.nn_sums(dqkv, weight<A>(context, places_.qkv.weight), dnormed, rows_, width_, columns_,
                            work(Carver(context.work)).scratch);
  }
  void weight_part(const Context& context, Tensors in, const A* dpart, const A* dqkv) const {
    float* scratch = work(Carver(context.work)).scratch;
    kernels_.matmul.tn(dpart, saved(Carver(context.saved)).mixed, floats(context.gradients, places_.proj.weight),
                       width_, slice_.mixed(), rows_, scratch);
    kernels_.matmul.tn(dqkv, data<A>(in[0]), floats(context.gradients, places_.qkv.weight), columns_, width_, rows_,
                       scratch);
  }

  /// Queries and keys are turned, values are not.
  RotaryShape rotary_shape() const {
    const AttentionShape shape = slice_.attention();
    return {shape.batch, shape.length, shape.heads + shape.kv_heads, shape.dim, columns_};
  }

  struct Saved {
    A *qkv, *mixed;  // qkv: after bias and rotation
    float* lse;
    int64_t bytes;
  };
  Saved saved(Carver memory) const {
    Saved s{};
    s.qkv = memory.take<A>(rows_ * columns_);
    s.mixed = memory.take<A>(rows_ * slice_.mixed());
    s.lse = memory.floats(rows_ * slice_.attention().heads);
    s.bytes = memory.bytes();
    return s;
  }

  struct Work {
    float* scratch;  // of whichever kernel runs
    A *dmixed, *dqkv;
    int64_t bytes;
  };
  Work work(Carver memory) const {
    Work w{};
    w.scratch = memory.floats(
        std::max({kernels_.attention_work(slice_.attention()), kernels_.matmul.layer_work(rows_, width_, columns_),
                  kernels_.matmul.layer_work(rows_, slice_.mixed(), width_)}));
    w.dmixed = memory.take<A>(rows_ * slice_.mixed());
    w.dqkv = memory.take<A>(rows_ * columns_);
    w.bytes = memory.bytes();
    return w;
  }

  /// What the input part leaves for the weight part.
  struct Between {
    SideGradients sides;
    A *dpart, *dqkv;
    int64_t bytes;
  };
  Between between(Carver memory) const {
    Between d{SideGradients({{places_.qkv.bias, columns_}}, memory), memory.take<A>(rows_ * width_),
              memory.take<A>(rows_ * columns_), 0};
    d.bytes = memory.bytes();
    return d;
  }

  GptSlice slice_;
  const KernelsFor<A>& kernels_;
  RotaryTable rotary_;
  GptLayerPlaces places_;
  int64_t rows_, width_, columns_;
};

}  // namespace

template <class A>
std::unique_ptr<Segment> make_slice_attention(const GptSlice& slice, const KernelsFor<A>& kernels,
                                              const RotaryTable& rotary) {
  return std::make_unique<SliceAttention<A>>(slice, kernels, rotary);
}

#define TUTTI_MAKE(A) \
  template std::unique_ptr<Segment> make_slice_attention(const GptSlice&, const KernelsFor<A>&, const RotaryTable&);
TUTTI_FOR_ACTIVATIONS(TUTTI_MAKE)
#undef TUTTI_MAKE

}  // namespace tutti
