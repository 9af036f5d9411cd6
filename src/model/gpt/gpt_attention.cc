// The core of attention. Heads of queries may share heads of keys and values (grouped-query
// attention), and positions may be rotary.
#include "model/gpt/gpt_core.h"

namespace tutti {

namespace {

template <class A>
GptCoreShape core_shape(const GptShape& shape, const AttentionShape& heads,
                        const KernelsFor<A>& kernels) {
  // `mixed` is the width of this column's heads. Attention is causal, so a row sees (length + 1) /
  // 2 positions on average; scores and mixing are two products of 2 operations per element each.
  const GptLayerPlaces places = gpt_layer_places(shape);
  const int64_t rows = shape.rows(), mixed = heads.heads * heads.dim;
  const double scores = static_cast<double>(rows) * static_cast<double>(shape.length + 1);
  return {.site = GptDropoutSite::kAttention,
          .norm = places.norm1,
          .first = places.qkv,
          .second = places.proj,
          .rows = rows,
          .width = shape.width,
          .columns = heads.columns(),
          .inner = mixed,
          .inner_gradient = rows * mixed,
          .statistics = rows * heads.heads,
          .scratch = kernels.attention_work(heads),
          .middle_flops = 2 * scores * static_cast<double>(mixed)};
}

template <class A>
class AttentionCore final : public GptCore<A> {
 public:
  using typename GptCore<A>::Memory;

  AttentionCore(const GptShape& shape, const AttentionShape& heads, const KernelsFor<A>& kernels,
                const FusedFor<A>& fused, const RotaryTable& rotary)
      : GptCore<A>(core_shape(shape, heads, kernels), kernels, fused),
        heads_(heads),
        rotary_(rotary) {}

  void forward(const Context& context, const Memory& m, const A* normed) const override {
    // qkv's bias is added by whichever kernel reads the product next: rotary, or attention itself.
    const float* bias = this->first(context, m).forward(normed, m.first);
    if (rotary_.defined()) {
      kernels_.rotary(m.first, bias, floats(rotary_), rotary_shape());
      bias = nullptr;
    }
    kernels_.attention(m.first, bias, m.inner, m.statistics, m.scratch, heads_);
  }

  void backward(const Context& context, const Memory& m, const A* dsecond, A* dfirst, float* dbias,
                bool weight_too) const override {
    // The weight's gradient is made here, while dsecond and m.inner are valid and in the cache.
    const GptLinear<A> proj = this->second(context, m);
    proj.backward(dsecond, m.dinner);
    if (weight_too) proj.backward_weight(dsecond, m.inner);
    // The bias is added before the rotation, so its gradient is made after rotating back.
    kernels_.attention_backward(m.dinner, m.first, m.inner, m.statistics, dfirst,
                                rotary_.defined() ? nullptr : dbias, m.scratch, heads_);
    if (rotary_.defined()) kernels_.rotary_backward(dfirst, floats(rotary_), dbias, rotary_shape());
  }

 private:
  using GptCore<A>::kernels_;

  /// Queries and keys are rotated, values are not.
  RotaryShape rotary_shape() const {
    return {heads_.batch, heads_.length, heads_.heads + heads_.kv_heads, heads_.dim,
            heads_.columns()};
  }

  const AttentionShape heads_;
  const RotaryTable rotary_;
};

}  // namespace

template <class A>
GptCorePtr<A> gpt_attention_core(const GptShape& shape, int64_t parts, const KernelsFor<A>& kernels,
                                 const FusedFor<A>& fused, const RotaryTable& rotary) {
  return std::make_unique<AttentionCore<A>>(shape, shape.attention(parts), kernels, fused, rotary);
}

#define TUTTI_MAKE(A)                                                                       \
  template GptCorePtr<A> gpt_attention_core(const GptShape&, int64_t, const KernelsFor<A>&, \
                                            const FusedFor<A>&, const RotaryTable&);
TUTTI_FOR_ACTIVATIONS(TUTTI_MAKE)
#undef TUTTI_MAKE

}  // namespace tutti
