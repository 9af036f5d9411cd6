// One branch of a block by hand, x + dropout(core(norm(x))): the attention or the mlp of the
// whole GPT.
#include "model/gpt/gpt_core.h"

namespace tutti {

namespace {

template <class A>
class GptBranch final : public Segment {
 public:
  GptBranch(const GptShape& shape, const KernelsFor<A>& kernels, GptCorePtr<A> core)
      : shape_(shape),
        kernels_(kernels),
        core_(std::move(core)),
        norm_(shape_, kernels, core_->shape.norm) {}

  std::string name() const override { return core_->shape.name(); }
  std::vector<Border> inputs() const override { return {gpt_stream(shape_)}; }
  std::vector<Border> outputs() const override { return {gpt_stream(shape_)}; }
  int64_t saved_bytes() const override { return memory({}, {}).saved_bytes; }
  int64_t work_bytes() const override { return memory({}, {}).work_bytes; }
  bool splits() const override { return true; }
  int64_t deferred_bytes() const override { return between({}).bytes; }
  bool attention() const override { return core_->shape.attention(); }
  double flops() const override { return core_->shape.flops(); }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const Memory m = memory(Carver(context.saved), Carver(context.work));

    // The core ends before its second layer, which adds the residual stream in the same kernel
    // where a device has one.
    const A* x = data<A>(in[0]);
    norm_.forward(context, x, m.norm);
    core_->forward(context, m.core, m.norm.normal);
    core_->second(context, m.core)
        .forward_residual(m.core.inner, x, data<A>(out[0]),
                          gpt_dropout(shape_, context.pass, core_->shape.site));
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out,
                Tensors grad_in) const override {
    const Memory m = memory(Carver(context.saved), Carver(context.work));
    run_backward(context, m, in, grad_out, grad_in,
                 {SideGradients(context.gradients), m.narrow, m.core.dfirst, 0}, true);
  }
  void backward_input(Context& context, Tensors in, Tensors, Tensors grad_out,
                      Tensors grad_in) const override {
    const Memory m = memory(Carver(context.saved), Carver(context.work));
    run_backward(context, m, in, grad_out, grad_in, between(Carver(context.deferred)), false);
  }
  void backward_weight(Context& context, Tensors, Tensors) const override {
    const Memory m = memory(Carver(context.saved), Carver(context.work));
    const Between d = between(Carver(context.deferred));
    core_->weight_part(context, m.core, m.norm.normal, d.dsecond, d.dfirst);
    d.sides.hand_over(context.gradients);
  }

 private:
  struct Memory {
    typename GptNorm<A>::Saved norm;
    typename GptCore<A>::Memory core;
    A* narrow;  // work: gradient of second's output (see run_backward), then of the norm's
    int64_t saved_bytes, work_bytes;
  };
  Memory memory(Carver saved, Carver work) const {
    Memory m{};
    m.norm = norm_.saved(saved);
    m.core = core_->memory(saved, work);
    m.narrow = work.take<A>(shape_.rows() * shape_.width);
    m.saved_bytes = saved.bytes();
    m.work_bytes = work.bytes();
    return m;
  }

  // In two parts, these gradients outlive the input part; `dsecond` is that of second's output.
  using Between = typename GptCore<A>::Between;
  Between between(Carver memory) const {
    const GptCoreShape& core = core_->shape;
    return core_->between({{core.norm.weight, core.width},
                           {core.norm.bias, core.width},
                           {core.first.bias, core.columns},
                           {core.second.bias, core.width}},
                          memory);
  }

  /// The input part. If `whole`, it also makes each weight's gradient as soon as it can: then
  /// dsecond, and grad_out, which the input's gradient may overwrite, need no copy.
  void run_backward(const Context& context, const Memory& m, Tensors in, Tensors grad_out,
                    Tensors grad_in, const Between& d, bool whole) const {
    const GptCoreShape& core = core_->shape;
    const A* dy = data<A>(grad_out[0]);
    const Dropout dropout = gpt_dropout(shape_, context.pass, core.site);

    // Through dropout to the gradient of what second puts out. Without dropout the kernel only
    // sums the bias's gradient and writes nothing, so grad_out itself is read, or copied if it
    // must be kept.
    kernels_.dropout_backward(dy, d.dsecond, d.sides(core.second.bias), core.rows, core.width,
                              &dropout);
    if (dropout.rate == 0 && !whole) defer(grad_out[0], d.dsecond);

    // Through the core and the first layer to the norm's output. m.narrow may hold dsecond, which
    // is not needed after the core's backward.
    const A* dsecond = dropout.rate == 0 ? dy : d.dsecond;
    core_->backward(context, m.core, dsecond, d.dfirst, d.sides(core.first.bias), whole);
    const GptLinear<A> first = core_->first(context, m.core);
    first.backward(d.dfirst, m.narrow);
    if (whole) first.backward_weight(d.dfirst, m.norm.normal);

    // Last, since dx may be grad_out's memory: the norm's kernel reads grad_out (the residual
    // stream's gradient) and adds to it.
    A* dx = grad_in[0].defined() ? data<A>(grad_in[0]) : m.narrow;
    norm_.backward(context, d.sides, m.narrow, data<A>(in[0]), m.norm, dy, dx);
  }

  GptShape shape_;
  const KernelsFor<A>& kernels_;
  GptCorePtr<A> core_;
  GptNorm<A> norm_;
};

}  // namespace

template <class A>
std::unique_ptr<Segment> make_gpt_attention(const GptShape& shape, const KernelsFor<A>& kernels,
                                            const RotaryTable& rotary) {
  return std::make_unique<GptBranch<A>>(
      shape, kernels, gpt_attention_core(shape, 1, kernels, kernels.fused, rotary));
}
template <class A>
std::unique_ptr<Segment> make_gpt_mlp(const GptShape& shape, const KernelsFor<A>& kernels) {
  return std::make_unique<GptBranch<A>>(shape, kernels,
                                        gpt_mlp_core(shape, 1, kernels, kernels.fused));
}

#define TUTTI_MAKE(A)                                                                         \
  template std::unique_ptr<Segment> make_gpt_attention(const GptShape&, const KernelsFor<A>&, \
                                                       const RotaryTable&);                   \
  template std::unique_ptr<Segment> make_gpt_mlp(const GptShape&, const KernelsFor<A>&);
TUTTI_FOR_ACTIVATIONS(TUTTI_MAKE)
#undef TUTTI_MAKE

}  // namespace tutti
