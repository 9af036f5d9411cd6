// A column's first and last segments: the embedding of its tokens, positions, the logits of its
// tokens, and the loss.
#include "model/core/deferred.h"
#include "model/gpt/gpt_column_segments.h"

namespace tutti {

namespace {

// A table lookup for the column's part of the vocabulary. Tokens of other columns get zeros, so the
// sum over columns is the whole lookup.
template <class A>
class ColumnEmbed final : public Segment {
 public:
  ColumnEmbed(const GptColumn& column, const KernelsFor<A>& kernels)
      : column_(column), kernels_(kernels) {}

  std::string name() const override { return "embed"; }
  std::vector<Border> inputs() const override { return {gpt_data(column_.whole)[0]}; }
  std::vector<Border> outputs() const override { return {column_.part()}; }
  bool splits() const override { return true; }
  int64_t deferred_bytes() const override {
    return column_.whole.rows() * column_.whole.width * static_cast<int64_t>(sizeof(A));
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    kernels_.vocabulary.embed(ids(in[0]), floats(context.parameters, GptEmbedPlaces::kToken),
                              floats(out[0]), column_.whole.rows(), column_.whole.width,
                              column_.first_token(), column_.vocab());
  }
  void backward(Context& context, Tensors in, Tensors, Tensors grad_out, Tensors) const override {
    weight_part(context, in, data<A>(grad_out[0]));
  }
  void backward_input(Context& context, Tensors, Tensors, Tensors grad_out,
                      Tensors) const override {
    defer(grad_out[0], context.deferred.data());
  }
  void backward_weight(Context& context, Tensors in, Tensors) const override {
    weight_part(context, in, reinterpret_cast<const A*>(context.deferred.data()));
  }

 private:
  void weight_part(const Context& context, Tensors in, const A* dpart) const {
    kernels_.vocabulary.embed_backward(
        ids(in[0]), dpart, floats(context.gradients, GptEmbedPlaces::kToken), column_.whole.rows(),
        column_.whole.width, column_.first_token(), column_.vocab());
  }

  GptColumn column_;
  const KernelsFor<A>& kernels_;
};

template <class A>
class ColumnPosition final : public Segment {
 public:
  ColumnPosition(const GptColumn& column, const KernelsFor<A>& kernels)
      : column_(column),
        kernels_(kernels),
        place_(column.whole.rotary ? kNoPlace : GptEmbedPlaces::kPosition) {}

  std::string name() const override { return "position"; }
  std::vector<Border> inputs() const override { return {column_.part_rows()}; }
  std::vector<Border> outputs() const override { return {column_.stream()}; }
  bool splits() const override { return true; }

  // Only the table's gradient waits for the weight part; the input's is the output's
  // through dropout.
  int64_t deferred_bytes() const override {
    Carver memory;
    sides(memory);
    return memory.bytes();
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const Dropout dropout = column_.dropout(context.pass, GptDropoutSite::kEmbed);
    kernels_.vocabulary.positions(data<A>(in[0]), floats(context.parameters, place_),
                                  data<A>(out[0]), column_.rows(), column_.first_row(),
                                  column_.whole.length, column_.whole.width, &dropout);
  }
  void backward(Context& context, Tensors, Tensors, Tensors grad_out,
                Tensors grad_in) const override {
    run_backward(context, SideGradients(context.gradients), grad_out, grad_in);
  }
  void backward_input(Context& context, Tensors, Tensors, Tensors grad_out,
                      Tensors grad_in) const override {
    Carver memory(context.deferred);
    run_backward(context, sides(memory), grad_out, grad_in);
  }
  void backward_weight(Context& context, Tensors, Tensors) const override {
    Carver memory(context.deferred);
    sides(memory).hand_over(context.gradients);
  }

 private:
  // The table of positions is shared, and each column adds the gradient of its rows; the kernel
  // writes the whole table, with zeros for other rows.
  SideGradients sides(Carver& memory) const {
    return SideGradients({{place_, column_.whole.length * column_.whole.width}}, memory);
  }
  void run_backward(const Context& context, const SideGradients& sides, Tensors grad_out,
                    Tensors grad_in) const {
    const Dropout dropout = column_.dropout(context.pass, GptDropoutSite::kEmbed);
    kernels_.vocabulary.positions_backward(data<A>(grad_out[0]), data<A>(grad_in[0]), sides(place_),
                                           column_.rows(), column_.first_row(),
                                           column_.whole.length, column_.whole.width, &dropout);
  }

  GptColumn column_;
  const KernelsFor<A>& kernels_;
  int place_;
};

template <class A>
class ColumnLogits final : public Segment {
 public:
  ColumnLogits(const GptColumn& column, const KernelsFor<A>& kernels)
      : column_(column),
        kernels_(kernels),
        place_(gpt_head_places(column.whole).head),
        rows_(column.whole.rows()),
        width_(column.whole.width),
        vocab_(column.vocab()) {}

  std::string name() const override { return "logits"; }
  std::vector<Border> inputs() const override {
    return {column_.all_normed(), gpt_data(column_.whole)[1]};
  }
  std::vector<Border> outputs() const override { return {column_.logits(), column_.statistics()}; }

  int64_t work_bytes() const override {
    Carver memory;
    memory.floats(kernels_.matmul.layer_work(rows_, width_, vocab_));
    return memory.bytes();
  }
  bool splits() const override { return true; }
  int64_t deferred_bytes() const override {
    return rows_ * vocab_ * static_cast<int64_t>(sizeof(A));
  }
  double flops() const override {
    return 2 * static_cast<double>(rows_) * static_cast<double>(width_) *
           static_cast<double>(vocab_);
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    // The loss needs a softmax over the whole vocabulary. Of its part a column passes on only a
    // row's three statistics (the largest logit, the sum of exponentials, the target's logit).
    A* logits = data<A>(out[0]);
    kernels_.matmul.nt(data<A>(in[0]), weight<A>(context, place_.weight), logits, rows_, vocab_,
                       width_, scratch(context));
    if (const float* bias = floats(context.parameters, place_.bias))
      kernels_.add_bias(logits, bias, rows_, vocab_);
    kernels_.vocabulary.statistics(logits, ids(in[1]), floats(out[1]), rows_, column_.first_token(),
                                   vocab_);
  }
  void backward(Context& context, Tensors in, Tensors, Tensors grad_out,
                Tensors grad_in) const override {
    // The weight part comes first, because grad_in may be grad_out's memory.
    weight_part(context, in, data<A>(grad_out[0]));
    input_part(context, data<A>(grad_out[0]), grad_in);
  }
  void backward_input(Context& context, Tensors, Tensors, Tensors grad_out,
                      Tensors grad_in) const override {
    defer(grad_out[0], context.deferred.data());
    input_part(context, data<A>(grad_out[0]), grad_in);
  }
  void backward_weight(Context& context, Tensors in, Tensors) const override {
    weight_part(context, in, reinterpret_cast<const A*>(context.deferred.data()));
  }

 private:
  float* scratch(const Context& context) const {
    return reinterpret_cast<float*>(context.work.data());
  }

  // A partial sum over columns: each has its own tokens' part of it.
  void input_part(const Context& context, const A* dlogits, Tensors grad_in) const {
    kernels_.matmul.nn_sums(dlogits, weight<A>(context, place_.weight), floats(grad_in[0]), rows_,
                            width_, vocab_, scratch(context));
  }

  void weight_part(const Context& context, Tensors in, const A* dlogits) const {
    if (float* dbias = floats(context.gradients, place_.bias))
      kernels_.column_sums(dlogits, dbias, rows_, vocab_);
    kernels_.matmul.tn(dlogits, data<A>(in[0]), floats(context.gradients, place_.weight), vocab_,
                       width_, rows_, scratch(context));
  }

  GptColumn column_;
  const KernelsFor<A>& kernels_;
  GptPlace place_;
  int64_t rows_, width_, vocab_;
};

template <class A>
class ColumnLoss final : public Segment {
 public:
  ColumnLoss(const GptColumn& column, const KernelsFor<A>& kernels)
      : column_(column), kernels_(kernels), rows_(column.whole.rows()) {}

  std::string name() const override { return "loss"; }
  std::vector<Border> inputs() const override {
    return {column_.logits(), column_.all_statistics(), gpt_data(column_.whole)[1]};
  }
  std::vector<Border> outputs() const override { return {gpt_loss()}; }

  // The logarithm of each row's sum of exponentials over the whole vocabulary.
  int64_t saved_bytes() const override {
    Carver memory;
    memory.floats(rows_);
    return memory.bytes();
  }
  bool splits() const override { return true; }

  void forward(Context& context, Tensors in, Tensors out) const override {
    // Every column joins all statistics in the same order, so all have the same loss.
    kernels_.vocabulary.cross_entropy(
        floats(in[1]), ids(in[2]), Carver(context.saved).floats(rows_),
        static_cast<double*>(out[0].data_ptr()), rows_, column_.columns);
  }
  void backward(Context& context, Tensors in, Tensors, Tensors, Tensors grad_in) const override {
    kernels_.vocabulary.cross_entropy_backward(
        data<A>(in[0]), ids(in[2]), Carver(context.saved).floats(rows_), context.loss_scale,
        data<A>(grad_in[0]), rows_, column_.first_token(), column_.vocab());

    // The gradient of the whole loss goes to the column's own logits directly, so none flows
    // through the statistics.
    if (grad_in[1].defined()) grad_in[1].zero_();
  }
  void backward_input(Context& context, Tensors in, Tensors out, Tensors grad_out,
                      Tensors grad_in) const override {
    backward(context, in, out, grad_out, grad_in);
  }
  void backward_weight(Context&, Tensors, Tensors) const override {}

 private:
  GptColumn column_;
  const KernelsFor<A>& kernels_;
  int64_t rows_;
};

}  // namespace

template <class A>
std::unique_ptr<Segment> make_column_embed(const GptColumn& column, const KernelsFor<A>& kernels) {
  return std::make_unique<ColumnEmbed<A>>(column, kernels);
}
template <class A>
std::unique_ptr<Segment> make_column_position(const GptColumn& column,
                                              const KernelsFor<A>& kernels) {
  return std::make_unique<ColumnPosition<A>>(column, kernels);
}
template <class A>
std::unique_ptr<Segment> make_column_logits(const GptColumn& column, const KernelsFor<A>& kernels) {
  return std::make_unique<ColumnLogits<A>>(column, kernels);
}
template <class A>
std::unique_ptr<Segment> make_column_loss(const GptColumn& column, const KernelsFor<A>& kernels) {
  return std::make_unique<ColumnLoss<A>>(column, kernels);
}

#define TUTTI_MAKE(A)                                                                             \
  template std::unique_ptr<Segment> make_column_embed(const GptColumn&, const KernelsFor<A>&);    \
  template std::unique_ptr<Segment> make_column_position(const GptColumn&, const KernelsFor<A>&); \
  template std::unique_ptr<Segment> make_column_logits(const GptColumn&, const KernelsFor<A>&);   \
  template std::unique_ptr<Segment> make_column_loss(const GptColumn&, const KernelsFor<A>&);
TUTTI_FOR_ACTIVATIONS(TUTTI_MAKE)
#undef TUTTI_MAKE

}  // namespace tutti
