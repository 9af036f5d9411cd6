// A column's heads of the GPT's attention, or its hidden units of the mlp. Its output is a partial
// sum, because the second layer is cut by its inputs (Megatron's row-parallel layer).
#include "model/gpt/gpt_column_segments.h"
#include "model/gpt/gpt_core.h"

namespace tutti {

namespace {

template <class A>
class ColumnBranch final : public Segment {
 public:
  ColumnBranch(const GptColumn& column, GptCorePtr<A> core)
      : column_(column), core_(std::move(core)) {}

  std::string name() const override { return core_->shape.name(); }
  std::vector<Border> inputs() const override { return {column_.all_normed(), column_.stream()}; }
  std::vector<Border> outputs() const override { return {column_.part(), column_.passed_stream()}; }
  int64_t saved_bytes() const override {
    Carver saved, work;
    core_->memory(saved, work);
    return saved.bytes();
  }
  int64_t work_bytes() const override {
    Carver saved, work;
    core_->memory(saved, work);
    return work.bytes();
  }
  bool splits() const override { return true; }
  int64_t deferred_bytes() const override { return between({}).bytes; }
  bool attention() const override { return core_->shape.attention(); }
  double flops() const override { return core_->shape.flops(); }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const Memory m = memory(context);
    core_->forward(context, m, data<A>(in[0]));
    core_->second(context, m).forward_sums(m.inner, floats(out[0]));
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out,
                Tensors grad_in) const override {
    const Memory m = memory(context);

    // The gradient of the partial sum is that of the sum, which every column has got whole.
    // weight_part makes both weights' gradients, so core's backward makes none.
    const A* dpart = data<A>(grad_out[0]);
    core_->backward(context, m, dpart, m.dfirst, floats(context.gradients, core_->shape.first.bias),
                    false);
    core_->weight_part(context, m, data<A>(in[0]), dpart, m.dfirst);
    // Last, because grad_in may be dpart's memory.
    core_->first(context, m).backward_sums(m.dfirst, floats(grad_in[0]));
  }
  void backward_input(Context& context, Tensors, Tensors, Tensors grad_out,
                      Tensors grad_in) const override {
    const Memory m = memory(context);

    // The weight part needs the gradients of both layers' outputs: one came in, the other is
    // made here.
    const Between d = between(Carver(context.deferred));
    defer(grad_out[0], d.dsecond);
    core_->backward(context, m, d.dsecond, d.dfirst, d.sides(core_->shape.first.bias), false);
    core_->first(context, m).backward_sums(d.dfirst, floats(grad_in[0]));
  }
  void backward_weight(Context& context, Tensors in, Tensors) const override {
    const Between d = between(Carver(context.deferred));
    core_->weight_part(context, memory(context), data<A>(in[0]), d.dsecond, d.dfirst);
    d.sides.hand_over(context.gradients);
  }

 private:
  using Memory = typename GptCore<A>::Memory;
  using Between = typename GptCore<A>::Between;
  Memory memory(const Context& context) const {
    Carver saved(context.saved), work(context.work);
    return core_->memory(saved, work);
  }

  // The second layer's bias is added after the sum, by the join, so only the first's is kept.
  Between between(Carver memory) const {
    return core_->between({{core_->shape.first.bias, core_->shape.columns}}, memory);
  }

  GptColumn column_;
  GptCorePtr<A> core_;
};

}  // namespace

// Columns do without the fused kernels, which round less often: the bits of models in columns are
// those of a bias that is added to a rounded product.
template <class A>
std::unique_ptr<Segment> make_column_attention(const GptColumn& column,
                                               const KernelsFor<A>& kernels,
                                               const RotaryTable& rotary) {
  return std::make_unique<ColumnBranch<A>>(
      column, gpt_attention_core(column.whole, column.columns, kernels, FusedFor<A>{}, rotary));
}
template <class A>
std::unique_ptr<Segment> make_column_mlp(const GptColumn& column, const KernelsFor<A>& kernels) {
  return std::make_unique<ColumnBranch<A>>(
      column, gpt_mlp_core(column.whole, column.columns, kernels, FusedFor<A>{}));
}

#define TUTTI_MAKE(A)                                                                             \
  template std::unique_ptr<Segment> make_column_attention(const GptColumn&, const KernelsFor<A>&, \
                                                          const RotaryTable&);                    \
  template std::unique_ptr<Segment> make_column_mlp(const GptColumn&, const KernelsFor<A>&);
TUTTI_FOR_ACTIVATIONS(TUTTI_MAKE)
#undef TUTTI_MAKE

}  // namespace tutti
