// A block of a stage, by hand. Only what the convolutions put out is kept from forward to backward: norm and activation
// are computed again where an image is copied into the padded form that convolutions read.
//
// Backward runs over the micro-batch once per layer, since a norm's gradient needs sums over all of it:
//   1. d, the gradient behind the last activation, and the sums of the last norm (and the shortcut's)
//   2. of two layers: image by image the last one's gradients, which give d behind the first activation, and its sums
//   3. image by image the first layer's gradients and the shortcut's. A shortcut without a convolution costs nothing:
//      d lies where the input's gradient goes, and the convolution adds to it
#include <algorithm>

#include "base/error.h"
#include "model/cnn_layer.h"
#include "model/cnn_segments.h"

namespace tutti {

namespace {

class CnnBlock final : public Segment {
 public:
  CnnBlock(const CnnPlan& plan, size_t index, const ConvKernels& kernels)
      : shape_(plan.shape),
        block_(plan.blocks[index]),
        in_(cnn_stream(plan, index)),
        out_(cnn_stream(plan, index + 1)),
        act_(activation_of(plan.shape.activation)),
        k_(kernels) {
    int first = 0;
    for (const ConvShape& conv : block_.layers) {
      layers_.emplace_back(shape_, conv, first);
      first += shape_.layer_parameters();
    }
    if (block_.shortcut) beside_.emplace(shape_, *block_.shortcut, first);
    adds_input_ = shape_.residual && !block_.shortcut;
  }

  std::string name() const override { return "block"; }
  std::vector<Border> inputs() const override { return {in_}; }
  std::vector<Border> outputs() const override { return {out_}; }
  int64_t saved_bytes() const override { return saved(Carver{}).bytes; }
  int64_t work_bytes() const override { return work(Carver{}).bytes; }
  double flops() const override {
    double sum = beside_ ? beside_->conv.flops() : 0;
    for (const CnnLayer& layer : layers_) sum += layer.conv.flops();
    return sum * static_cast<double>(shape_.batch);
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    const float* x = floats(in[0]);
    clear(w);
    const CnnLayer& first = layers_[0];
    k_.pack_weight(first.weight(context), w.layers[0].panels, first.conv);
    if (beside_) k_.pack_weight(beside_->weight(context), w.beside.panels, beside_->conv);
    for (int64_t b = 0; b < shape_.batch; ++b) {
      k_.pack(x + b * first.conv.inputs(), nullptr, act_, w.padded[0], first.conv.height, first.conv.width,
              first.conv.in);
      convolve(context, first, w.padded[0], s.layers[0], w.layers[0], b);
      if (beside_) convolve(context, *beside_, w.padded[0], s.beside, w.beside, b);
    }
    first.statistics(context, s.layers[0], w.layers[0]);
    if (beside_) beside_->statistics(context, s.beside, w.beside);
    if (layers_.size() == 2) {
      const CnnLayer& second = layers_[1];
      k_.pack_weight(second.weight(context), w.layers[1].panels, second.conv);
      for (int64_t b = 0; b < shape_.batch; ++b) {
        pack_hidden(s, b, w.padded[1]);
        convolve(context, second, w.padded[1], s.layers[1], w.layers[1], b);
      }
      second.statistics(context, s.layers[1], w.layers[1]);
    }
    for (int64_t b = 0; b < shape_.batch; ++b) {
      const CnnLayer& last = layers_.back();
      const CnnLayer::Saved& y = s.layers[layers_.size() - 1];
      k_.join(y.image(b, last.conv), last.affine(y, b), shortcut(s, x, b), act_,
              floats(out[0]) + b * last.conv.outputs(), pixels(), block_.channels());
    }
  }

  void backward(Context& context, Tensors in, Tensors out, Tensors grad_out, Tensors grad_in) const override {
    TUTTI_CHECK(grad_in[0].defined(), "a block of a cnn stands behind the stem, which wants its gradient");
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    const float* x = floats(in[0]);
    float *dx = floats(grad_in[0]), *behind = adds_input_ ? dx : w.behind;
    const CnnLayer& last = layers_.back();
    const size_t end = layers_.size() - 1;
    clear(w);

    const int64_t stride = 3 * block_.channels(), each = last.conv.outputs();
    for (int64_t b = 0; b < shape_.batch; ++b) {
      k_.join_backward(floats(grad_out[0]) + b * each, floats(out[0]) + b * each, s.layers[end].image(b, last.conv),
                       last.affine(s.layers[end], b), last.mean(s.layers[end], b), shortcut(s, x, b), act_,
                       behind + b * each, w.sums + b * stride, pixels(), block_.channels());
    }
    last.backward(context, s.layers[end], w.layers[end], w.sums, w.sums + block_.channels(), stride);
    if (beside_) beside_->backward(context, s.beside, w.beside, w.sums, w.sums + 2 * block_.channels(), stride);

    if (end == 1) second_backward(context, s, w, behind);
    first_backward(context, s, w, x, end == 1 ? w.hidden : behind, behind, dx);
  }

 private:
  struct Saved {
    CnnLayer::Saved layers[2], beside;
    int64_t bytes;
  };
  Saved saved(Carver memory) const {
    Saved s{};
    for (size_t i = 0; i < layers_.size(); ++i) s.layers[i] = layers_[i].saved(memory);
    if (beside_) s.beside = beside_->saved(memory);
    s.bytes = memory.bytes();
    return s;
  }

  struct Work {
    CnnLayer::Work layers[2], beside;
    float* padded[2];        // what a layer reads, of one image
    float* padded_gradient;  // of what a layer puts out
    float* sums;             // [batch][3][channels]
    float* behind;  // d of the whole micro-batch behind the last activation, unless it lies in the input's gradient
    float* hidden;  // behind the first of two
    int64_t bytes;
  };
  Work work(Carver memory) const {
    Work w{};
    for (size_t i = 0; i < layers_.size(); ++i) w.layers[i] = layers_[i].work(memory);
    if (beside_) w.beside = beside_->work(memory);
    for (size_t i = 0; i < layers_.size(); ++i) w.padded[i] = memory.floats(layers_[i].conv.padded_inputs());
    w.padded_gradient = memory.floats(layers_[0].conv.padded_outputs());
    w.sums = memory.floats(shape_.batch * 3 * block_.channels());
    const int64_t all = shape_.batch * layers_[0].conv.outputs();
    w.behind = memory.floats(adds_input_ ? 0 : all);
    w.hidden = memory.floats(layers_.size() == 2 ? all : 0);
    w.bytes = memory.bytes();
    return w;
  }
  /// The zeros around what the passes fill.
  void clear(const Work& w) const {
    for (size_t i = 0; i < layers_.size(); ++i) std::fill_n(w.padded[i], layers_[i].conv.padded_inputs(), 0.0f);
    std::fill_n(w.padded_gradient, layers_[0].conv.padded_outputs(), 0.0f);
  }

  int64_t pixels() const { return block_.height() * block_.width(); }

  Shortcut shortcut(const Saved& s, const float* x, int64_t b) const {
    if (beside_) return {s.beside.image(b, beside_->conv), beside_->affine(s.beside, b), beside_->mean(s.beside, b)};
    return {adds_input_ ? x + b * layers_[0].conv.inputs() : nullptr, {}, nullptr};
  }

  void convolve(const Context& context, const CnnLayer& layer, const float* padded, const CnnLayer::Saved& s,
                const CnnLayer::Work& w, int64_t b) const {
    float *y = s.image(b, layer.conv), *moments = w.moments + 2 * b * layer.conv.out;
    k_.forward(padded, w.panels, y, layer.conv);
    if (layer.needs_moments(context)) k_.moments(y, moments, moments + layer.conv.out, pixels(), layer.conv.out);
  }

  void pack_hidden(const Saved& s, int64_t b, float* padded) const {
    const CnnLayer& first = layers_[0];
    const Affine affine = first.affine(s.layers[0], b);
    k_.pack(s.layers[0].image(b, first.conv), &affine, act_, padded, block_.height(), block_.width(), first.conv.out);
  }

  /// From d behind the block's activation to d behind the first layer's.
  void second_backward(const Context& context, const Saved& s, const Work& w, const float* behind) const {
    const CnnLayer &first = layers_[0], &second = layers_[1];
    const ConvShape& conv = second.conv;
    const int64_t stride = 2 * conv.in;
    k_.pack_weight_backward(second.weight(context), w.layers[1].backward_panels, conv);
    for (int64_t b = 0; b < shape_.batch; ++b) {
      float* d = w.hidden + b * conv.inputs();
      k_.norm_backward(behind + b * conv.outputs(), s.layers[1].image(b, conv),
                       second.gradient(s.layers[1], w.layers[1], b), w.padded_gradient, conv.height, conv.width,
                       conv.out);
      pack_hidden(s, b, w.padded[1]);
      k_.weight_gradient(w.padded[1], w.padded_gradient, w.layers[1].gradient_panels, conv, b == 0);
      k_.input_gradient(w.padded_gradient, w.layers[1].backward_panels, d, conv, false);
      k_.join_backward(d, nullptr, s.layers[0].image(b, first.conv), first.affine(s.layers[0], b),
                       first.mean(s.layers[0], b), {}, act_, d, w.sums + b * stride, pixels(), conv.in);
    }
    k_.unpack_weight(w.layers[1].gradient_panels, second.weight_gradient(context), conv);
    first.backward(context, s.layers[0], w.layers[0], w.sums, w.sums + conv.in, stride);
  }

  /// From d behind the first layer's activation, and behind the block's for the shortcut, to the input's gradient.
  void first_backward(const Context& context, const Saved& s, const Work& w, const float* x, const float* d,
                      const float* behind, float* dx) const {
    const CnnLayer& first = layers_[0];
    const ConvShape& conv = first.conv;
    k_.pack_weight_backward(first.weight(context), w.layers[0].backward_panels, conv);
    if (beside_) k_.pack_weight_backward(beside_->weight(context), w.beside.backward_panels, beside_->conv);
    for (int64_t b = 0; b < shape_.batch; ++b) {
      k_.pack(x + b * conv.inputs(), nullptr, act_, w.padded[0], conv.height, conv.width, conv.in);
      layer_gradients(first, s.layers[0], w.layers[0], w, d, b, dx, adds_input_);
      if (beside_) layer_gradients(*beside_, s.beside, w.beside, w, behind, b, dx, true);
    }
    k_.unpack_weight(w.layers[0].gradient_panels, first.weight_gradient(context), conv);
    if (beside_) k_.unpack_weight(w.beside.gradient_panels, beside_->weight_gradient(context), beside_->conv);
  }

  void layer_gradients(const CnnLayer& layer, const CnnLayer::Saved& s, const CnnLayer::Work& lw, const Work& w,
                       const float* d, int64_t b, float* dx, bool add) const {
    const ConvShape& conv = layer.conv;
    k_.norm_backward(d + b * conv.outputs(), s.image(b, conv), layer.gradient(s, lw, b), w.padded_gradient,
                     conv.out_height(), conv.out_width(), conv.out);
    k_.weight_gradient(w.padded[0], w.padded_gradient, lw.gradient_panels, conv, b == 0);
    k_.input_gradient(w.padded_gradient, lw.backward_panels, dx + b * conv.inputs(), conv, add);
  }

  const CnnShape shape_;
  const CnnBlockShape block_;
  const Border in_, out_;
  const Activation act_;
  const ConvKernels& k_;
  std::vector<CnnLayer> layers_;
  std::optional<CnnLayer> beside_;
  bool adds_input_ = false;  // the shortcut is the input itself
};

}  // namespace

std::unique_ptr<Segment> make_cnn_block(const CnnPlan& plan, size_t index, const CnnTables& tables) {
  return std::make_unique<CnnBlock>(plan, index, tables.conv);
}

}  // namespace tutti
