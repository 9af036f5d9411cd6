// The GPT's first and last segments by hand: the embedding, the head (final norm and linear layer),
// and the loss.
#include "model/core/deferred.h"
#include "model/gpt/gpt_segments.h"

namespace tutti {

namespace {

template <class A>
class GptEmbed final : public Segment {
 public:
  GptEmbed(const GptShape& shape, const KernelsFor<A>& kernels)
      : shape_(shape), kernels_(kernels) {}

  std::string name() const override { return "embed"; }
  std::vector<Border> inputs() const override { return {gpt_data(shape_)[0]}; }
  std::vector<Border> outputs() const override { return {gpt_stream(shape_)}; }
  bool splits() const override { return true; }
  int64_t deferred_bytes() const override {
    return shape_.rows() * shape_.width * static_cast<int64_t>(sizeof(A));
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    using P = GptEmbedPlaces;
    const Dropout dropout = gpt_dropout(shape_, context.pass, GptDropoutSite::kEmbed);
    kernels_.embed(ids(in[0]), floats(context.parameters, P::kToken),
                   floats(context.parameters, position()), data<A>(out[0]), shape_.rows(),
                   shape_.length, shape_.width, &dropout);
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out, Tensors) const override {
    run_backward(context, ids(in[0]), data<A>(grad_out[0]));
  }

  // Tokens have no gradient, so the input part has nothing to make; all work is the weights'.
  void backward_input(Context& context, Tensors, Tensors, Tensors grad_out,
                      Tensors) const override {
    defer(grad_out[0], context.deferred.data());
  }
  void backward_weight(Context& context, Tensors in, Tensors) const override {
    run_backward(context, ids(in[0]), reinterpret_cast<const A*>(context.deferred.data()));
  }

 private:
  // The tables' gradients, through dropout.
  void run_backward(const Context& context, const int64_t* tokens, const A* dout) const {
    using P = GptEmbedPlaces;
    const Dropout dropout = gpt_dropout(shape_, context.pass, GptDropoutSite::kEmbed);
    kernels_.embed_backward(tokens, dout, floats(context.gradients, P::kToken),
                            floats(context.gradients, position()), shape_.rows(), shape_.length,
                            shape_.vocab, shape_.width, &dropout);
  }

  // Rotary positions belong to attention, so there is no table of positions then.
  int position() const { return shape_.rotary ? kNoPlace : GptEmbedPlaces::kPosition; }

  GptShape shape_;
  const KernelsFor<A>& kernels_;
};

template <class A>
class GptHead final : public Segment {
 public:
  GptHead(const GptShape& shape, const KernelsFor<A>& kernels)
      : shape_(shape),
        kernels_(kernels),
        places_(gpt_head_places(shape)),
        norm_(shape_, kernels, places_.norm) {}

  std::string name() const override { return "head"; }
  std::vector<Border> inputs() const override { return {gpt_stream(shape_)}; }
  std::vector<Border> outputs() const override { return {gpt_logits(shape_)}; }
  int64_t saved_bytes() const override { return saved(Carver{}).bytes; }
  int64_t work_bytes() const override { return work(Carver{}).bytes; }
  bool splits() const override { return true; }
  int64_t deferred_bytes() const override { return between(Carver{}).bytes; }
  double flops() const override {
    return 2 * static_cast<double>(shape_.rows()) * static_cast<double>(shape_.width) *
           static_cast<double>(shape_.vocab);
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const int64_t rows = shape_.rows(), width = shape_.width;
    const Saved s = saved(Carver(context.saved));
    const float* bias = floats(context.parameters, places_.head.bias);

    // logits = norm(x) weight^T + bias.
    norm_.forward(context, data<A>(in[0]), s.norm);
    kernels_.matmul.nt(s.norm.normal, weight<A>(context, places_.head.weight), data<A>(out[0]),
                       rows, shape_.vocab, width, work(Carver(context.work)).scratch);
    if (bias != nullptr) kernels_.add_bias(data<A>(out[0]), bias, rows, shape_.vocab);
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out,
                Tensors grad_in) const override {
    // The weight part comes first: if vocab equals width, grad_in may be grad_out's memory.
    weight_part(context, data<A>(grad_out[0]));
    input_part(context, in[0], grad_out[0], grad_in[0], SideGradients(context.gradients));
  }
  void backward_input(Context& context, Tensors in, Tensors, Tensors grad_out,
                      Tensors grad_in) const override {
    const Between d = between(Carver(context.deferred));
    defer(grad_out[0], d.dlogits);
    input_part(context, in[0], grad_out[0], grad_in[0], d.sides);
  }
  void backward_weight(Context& context, Tensors, Tensors) const override {
    const Between d = between(Carver(context.deferred));
    weight_part(context, d.dlogits);
    d.sides.hand_over(context.gradients);
  }

 private:
  /// What the input part leaves for the weight part.
  struct Between {
    SideGradients sides;
    A* dlogits;
    int64_t bytes;
  };
  Between between(Carver memory) const {
    Between d{SideGradients(
                  {{places_.norm.weight, shape_.width}, {places_.norm.bias, shape_.width}}, memory),
              memory.take<A>(shape_.rows() * shape_.vocab), 0};
    d.bytes = memory.bytes();
    return d;
  }

  // Back through the linear layer, then through the norm.
  void input_part(const Context& context, const at::Tensor& in, const at::Tensor& grad_out,
                  const at::Tensor& grad_in, const SideGradients& sides) const {
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    kernels_.matmul.nn(data<A>(grad_out), weight<A>(context, places_.head.weight), w.dnormal,
                       shape_.rows(), shape_.width, shape_.vocab, w.scratch);

    // If nobody wants the input's gradient, the norm's backward still runs for its parameters, and
    // its dx goes to scratch.
    A* dx = grad_in.defined() ? data<A>(grad_in) : w.dnormal;
    norm_.backward(context, sides, w.dnormal, data<A>(in), s.norm, nullptr, dx);
  }

  // The linear layer's gradients, from the saved output of the norm.
  void weight_part(const Context& context, const A* dlogits) const {
    const int64_t rows = shape_.rows();
    float* dbias = floats(context.gradients, places_.head.bias);
    if (dbias != nullptr) kernels_.column_sums(dlogits, dbias, rows, shape_.vocab);
    kernels_.matmul.tn(dlogits, saved(Carver(context.saved)).norm.normal,
                       floats(context.gradients, places_.head.weight), shape_.vocab, shape_.width,
                       rows, work(Carver(context.work)).scratch);
  }

  // What is kept from forward to backward; without memory it is only counted.
  struct Saved {
    typename GptNorm<A>::Saved norm;
    int64_t bytes;
  };
  Saved saved(Carver memory) const {
    Saved s{};
    s.norm = norm_.saved(memory);
    s.bytes = memory.bytes();
    return s;
  }

  struct Work {
    float* scratch;
    A* dnormal;
    int64_t bytes;
  };
  Work work(Carver memory) const {
    Work w{};
    w.scratch =
        memory.floats(kernels_.matmul.layer_work(shape_.rows(), shape_.width, shape_.vocab));
    w.dnormal = memory.take<A>(shape_.rows() * shape_.width);
    w.bytes = memory.bytes();
    return w;
  }

  GptShape shape_;
  const KernelsFor<A>& kernels_;
  GptHeadPlaces places_;
  GptNorm<A> norm_;
};

template <class A>
class GptLoss final : public Segment {
 public:
  GptLoss(const GptShape& shape, const KernelsFor<A>& kernels) : shape_(shape), kernels_(kernels) {}

  std::string name() const override { return "loss"; }
  std::vector<Border> inputs() const override { return {gpt_logits(shape_), gpt_data(shape_)[1]}; }
  std::vector<Border> outputs() const override { return {gpt_loss()}; }

  // The logarithm of each row's sum of exponentials, from which backward makes probabilities.
  int64_t saved_bytes() const override {
    Carver memory;
    memory.floats(shape_.rows());
    return memory.bytes();
  }
  bool splits() const override { return true; }
  /// The head's backward does not look at the logits again, so the gradient may take their memory.
  bool consumes(size_t input) const override { return input == 0; }

  void forward(Context& context, Tensors in, Tensors out) const override {
    // In training on a device that can, forward leaves the gradient in the logits in the same pass;
    // backward then has nothing to do. The logits are the largest border by far.
    if (at_once(context)) {
      kernels_.cross_entropy_in_place(data<A>(in[0]), ids(in[1]), context.loss_scale,
                                      static_cast<double*>(out[0].data_ptr()), shape_.rows(),
                                      shape_.vocab);
      return;
    }
    kernels_.cross_entropy(data<A>(in[0]), ids(in[1]), Carver(context.saved).floats(shape_.rows()),
                           static_cast<double*>(out[0].data_ptr()), shape_.rows(), shape_.vocab);
  }

  void backward(Context& context, Tensors in, Tensors, Tensors, Tensors grad_in) const override {
    if (!grad_in[0].defined() || at_once(context)) return;
    kernels_.cross_entropy_backward(data<A>(in[0]), ids(in[1]),
                                    Carver(context.saved).floats(shape_.rows()), context.loss_scale,
                                    data<A>(grad_in[0]), shape_.rows(), shape_.vocab);
  }
  void backward_input(Context& context, Tensors in, Tensors out, Tensors grad_out,
                      Tensors grad_in) const override {
    backward(context, in, out, grad_out, grad_in);
  }
  void backward_weight(Context&, Tensors, Tensors) const override {}

 private:
  /// Whether forward makes the gradient, too.
  bool at_once(const Context& context) const {
    return context.consume && context.pass.training && kernels_.cross_entropy_in_place != nullptr;
  }

  GptShape shape_;
  const KernelsFor<A>& kernels_;
};

}  // namespace

template <class A>
std::unique_ptr<Segment> make_gpt_embed(const GptShape& shape, const KernelsFor<A>& kernels) {
  return std::make_unique<GptEmbed<A>>(shape, kernels);
}
template <class A>
std::unique_ptr<Segment> make_gpt_head(const GptShape& shape, const KernelsFor<A>& kernels) {
  return std::make_unique<GptHead<A>>(shape, kernels);
}
template <class A>
std::unique_ptr<Segment> make_gpt_loss(const GptShape& shape, const KernelsFor<A>& kernels) {
  return std::make_unique<GptLoss<A>>(shape, kernels);
}

#define TUTTI_MAKE(A)                                                                      \
  template std::unique_ptr<Segment> make_gpt_embed(const GptShape&, const KernelsFor<A>&); \
  template std::unique_ptr<Segment> make_gpt_head(const GptShape&, const KernelsFor<A>&);  \
  template std::unique_ptr<Segment> make_gpt_loss(const GptShape&, const KernelsFor<A>&);
TUTTI_FOR_ACTIVATIONS(TUTTI_MAKE)
#undef TUTTI_MAKE

}  // namespace tutti
