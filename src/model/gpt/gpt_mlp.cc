// The core of the mlp: an activation, or silu(gate) * up of the two halves of what fc1 puts
// out (swiglu).
#include "model/gpt/gpt_core.h"

namespace tutti {

namespace {

GptCoreShape core_shape(const GptShape& shape, int64_t parts) {
  // A column has `hidden` of the hidden units. With a gate fc1 has two rows for each of them.
  const GptLayerPlaces places = gpt_layer_places(shape);
  const int64_t rows = shape.rows(), hidden = shape.hidden / parts;
  return {.site = GptDropoutSite::kMlp,
          .norm = places.norm2,
          .first = places.fc1,
          .second = places.fc2,
          .rows = rows,
          .width = shape.width,
          .columns = shape.fc1_columns() / parts,
          .inner = hidden,
          // without a gate it is made where the gradient of fc1's output goes
          .inner_gradient = shape.gated() ? rows * hidden : 0,
          .statistics = 0,
          .scratch = 0,
          .middle_flops = 0};
}

template <class A>
class MlpCore final : public GptCore<A> {
 public:
  using typename GptCore<A>::Memory;

  MlpCore(const GptShape& shape, int64_t parts, const KernelsFor<A>& kernels,
          const FusedFor<A>& fused)
      : GptCore<A>(core_shape(shape, parts), kernels, fused),
        gated_(shape.gated()),
        activation_(gated_ ? Activation::kSilu : shape.activation) {}

  void forward(const Context& context, const Memory& m, const A* normed) const override {
    // The bias of fc1 is added by the activation's kernel, which saves a pass over memory.
    const GptLinear<A> fc1 = this->first(context, m);
    if (gated_) {
      const float* bias = fc1.forward(normed, m.first);
      kernels_.bias_swiglu(m.first, bias, m.inner, this->shape.rows, this->shape.inner);
    } else {
      fc1.forward_activation(normed, m.first, m.inner, activation_);
    }
  }

  void backward(const Context& context, const Memory& m, const A* dsecond, A* dfirst, float* dbias,
                bool weight_too) const override {
    // The gradient goes through fc2 and the activation, which reads what forward left in m.first.
    const GptLinear<A> fc2 = this->second(context, m);
    if (gated_) {
      fc2.backward(dsecond, m.dinner);
      kernels_.swiglu_backward(m.dinner, m.first, dfirst, dbias, this->shape.rows,
                               this->shape.inner);
    } else {
      fc2.backward_activation(dsecond, m.first, dfirst, dbias, activation_);
    }
    if (weight_too) fc2.backward_weight(dsecond, m.inner);
  }

 private:
  using GptCore<A>::kernels_;

  const bool gated_;
  const Activation activation_;
};

}  // namespace

template <class A>
GptCorePtr<A> gpt_mlp_core(const GptShape& shape, int64_t parts, const KernelsFor<A>& kernels,
                           const FusedFor<A>& fused) {
  return std::make_unique<MlpCore<A>>(shape, parts, kernels, fused);
}

#define TUTTI_MAKE(A)                                                                 \
  template GptCorePtr<A> gpt_mlp_core(const GptShape&, int64_t, const KernelsFor<A>&, \
                                      const FusedFor<A>&);
TUTTI_FOR_ACTIVATIONS(TUTTI_MAKE)
#undef TUTTI_MAKE

}  // namespace tutti
