// The GPT's first and last segments by hand: embedding, head (final norm and linear layer), loss.
#include "model/gpt_segments.h"

namespace tutti {

namespace {

template <class A>
class GptEmbed final : public Segment {
 public:
  GptEmbed(const GptShape& shape, const KernelsFor<A>& kernels) : shape_(shape), kernels_(kernels) {}

  std::string name() const override { return "embed"; }
  std::vector<Border> inputs() const override { return {gpt_data(shape_)[0]}; }
  std::vector<Border> outputs() const override { return {gpt_stream(shape_)}; }

  void forward(Context& context, Tensors in, Tensors out) const override {
    using P = GptEmbedPlaces;
    const Dropout dropout = gpt_dropout(shape_, context.pass, GptDropoutSite::kEmbed);
    kernels_.embed(ids(in[0]), floats(context.parameters, P::kToken), floats(context.parameters, position()),
                   data<A>(out[0]), shape_.rows(), shape_.length, shape_.width, &dropout);
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out, Tensors) const override {
    using P = GptEmbedPlaces;
    const Dropout dropout = gpt_dropout(shape_, context.pass, GptDropoutSite::kEmbed);
    kernels_.embed_backward(ids(in[0]), data<A>(grad_out[0]), floats(context.gradients, P::kToken),
                            floats(context.gradients, position()), shape_.rows(), shape_.length, shape_.vocab,
                            shape_.width, &dropout);
  }

 private:
  int position() const { return shape_.rotary ? GptPlace::kNone : GptEmbedPlaces::kPosition; }

  GptShape shape_;
  const KernelsFor<A>& kernels_;
};

template <class A>
class GptHead final : public Segment {
 public:
  GptHead(const GptShape& shape, const KernelsFor<A>& kernels)
      : shape_(shape), kernels_(kernels), places_(gpt_head_places(shape)), norm_(shape_, kernels, places_.norm) {}

  std::string name() const override { return "head"; }
  std::vector<Border> inputs() const override { return {gpt_stream(shape_)}; }
  std::vector<Border> outputs() const override { return {gpt_logits(shape_)}; }
  int64_t saved_bytes() const override { return saved(Carver{}).bytes; }
  int64_t work_bytes() const override { return work(Carver{}).bytes; }
  double flops() const override {
    return 2 * static_cast<double>(shape_.rows()) * static_cast<double>(shape_.width) *
           static_cast<double>(shape_.vocab);
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const int64_t rows = shape_.rows(), width = shape_.width;
    const Saved s = saved(Carver(context.saved));
    const float* bias = floats(context.parameters, places_.head.bias);
    norm_.forward(context, data<A>(in[0]), s.norm);
    kernels_.matmul.nt(s.norm.normal, weight<A>(context, places_.head.weight), data<A>(out[0]), rows, shape_.vocab,
                       width, work(Carver(context.work)).scratch);
    if (bias != nullptr) kernels_.add_bias(data<A>(out[0]), bias, rows, shape_.vocab);
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out, Tensors grad_in) const override {
    const int64_t rows = shape_.rows(), width = shape_.width;
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    const auto g = [&](int place) { return floats(context.gradients, place); };
    const A* dlogits = data<A>(grad_out[0]);
    if (float* dbias = g(places_.head.bias)) kernels_.column_sums(dlogits, dbias, rows, shape_.vocab);
    kernels_.matmul.nn(dlogits, weight<A>(context, places_.head.weight), w.dnormal, rows, width, shape_.vocab,
                       w.scratch);
    kernels_.matmul.tn(dlogits, s.norm.normal, g(places_.head.weight), shape_.vocab, width, rows, w.scratch);
    A* dx = grad_in[0].defined() ? data<A>(grad_in[0]) : w.dnormal;
    norm_.backward(context, w.dnormal, data<A>(in[0]), s.norm, nullptr, dx);
  }

 private:
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
    w.scratch = memory.floats(kernels_.matmul.layer_work(shape_.rows(), shape_.width, shape_.vocab));
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
  int64_t saved_bytes() const override {
    Carver memory;
    memory.floats(shape_.rows());
    return memory.bytes();
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    kernels_.cross_entropy(data<A>(in[0]), ids(in[1]), Carver(context.saved).floats(shape_.rows()),
                           static_cast<double*>(out[0].data_ptr()), shape_.rows(), shape_.vocab);
  }

  void backward(Context& context, Tensors in, Tensors, Tensors, Tensors grad_in) const override {
    if (!grad_in[0].defined()) return;
    kernels_.cross_entropy_backward(data<A>(in[0]), ids(in[1]), Carver(context.saved).floats(shape_.rows()),
                                    context.loss_scale, data<A>(grad_in[0]), shape_.rows(), shape_.vocab);
  }

 private:
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
