// A block of a stage, by hand. Only what the convolutions put out is kept from forward to backward.
// Norm and activation are cheap, so they are computed again whenever an image is copied into the
// padded form that convolutions read.
//
// d is the gradient of what an activation reads: of a norm's output, plus the shortcut at the end
// of the block. Backward goes over the micro-batch once per layer, since a norm's gradient needs
// sums over all of it:
//   1. makes d at the last activation, and the sums of the last norm (and of the shortcut's)
//   2. with two layers: image by image the last layer's gradients, which give d at the first
//      activation, and its sums
//   3. image by image the first layer's gradients and the shortcut's. A shortcut without a
//      convolution costs nothing: d is made where the input's gradient goes, and the convolution
//      adds to it
// In two parts, d of every layer and the factors of its norm are kept, and the weight part makes
// each image's gradient of the convolution's output again from them.
#include <algorithm>

#include "base/error.h"
#include "model/cnn/cnn_layer.h"
#include "model/cnn/cnn_segments.h"

namespace tutti {

namespace {

class CnnBlock final : public CnnSegment {
 public:
  CnnBlock(const CnnPlan& plan, size_t index, const ConvKernels& kernels)
      : CnnSegment("block", plan.shape, cnn_stream(plan, index), cnn_stream(plan, index + 1)),
        block_(plan.blocks[index]),
        act_(plan.shape.activation),
        k_(kernels) {
    int first = 0;
    for (const ConvShape& conv : block_.layers) {
      layers_.emplace_back(shape_, conv, first, k_);
      first += shape_.layer_parameters();
    }
    if (block_.shortcut) shortcut_.emplace(shape_, *block_.shortcut, first, k_);
    adds_input_ = shape_.residual && !block_.shortcut;
  }

  int64_t saved_bytes() const override { return saved(Carver{}).bytes; }
  int64_t work_bytes() const override { return work(Carver{}).bytes; }
  int64_t deferred_bytes() const override {
    Work w{};
    return between(Carver{}, w).bytes;
  }
  double flops() const override {
    double sum = shortcut_ ? shortcut_->conv.flops() : 0;
    for (const CnnLayer& layer : layers_) sum += layer.conv.flops();
    return sum * static_cast<double>(shape_.batch);
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    const float* x = floats(in[0]);

    // Convolutions run image by image, so that a padded image stays in the cache. First layer and
    // shortcut read the same one.
    clear(w);
    const CnnLayer& first = layers_[0];
    first.pack_weight(context, w.layers[0]);
    if (shortcut_) shortcut_->pack_weight(context, w.shortcut);
    for (int64_t b = 0; b < shape_.batch; ++b) {
      k_.pack(x + b * first.conv.inputs(), nullptr, act_, w.padded[0], first.conv.height,
              first.conv.width, first.conv.in);
      first.convolve(context, w.padded[0], s.layers[0], w.layers[0], b);
      if (shortcut_) shortcut_->convolve(context, w.padded[0], s.shortcut, w.shortcut, b);
    }

    // The second layer reads normed values, so it can only start when the whole micro-batch has
    // been through the first: batch norm's statistics are over all of it.
    first.statistics(context, s.layers[0], w.layers[0]);
    if (shortcut_) shortcut_->statistics(context, s.shortcut, w.shortcut);
    if (layers_.size() == 2) {
      const CnnLayer& second = layers_[1];
      second.pack_weight(context, w.layers[1]);

      for (int64_t b = 0; b < shape_.batch; ++b) {
        pack_hidden(s, b, w.padded[1]);
        second.convolve(context, w.padded[1], s.layers[1], w.layers[1], b);
      }
      second.statistics(context, s.layers[1], w.layers[1]);
    }
    for (int64_t b = 0; b < shape_.batch; ++b) {
      const CnnLayer& last = layers_.back();
      const CnnLayer::Saved& y = s.layers[layers_.size() - 1];
      k_.join(y.image(b, last.conv), last.affine(y, b), shortcut_of(s, x, b), act_,
              floats(out[0]) + b * last.conv.outputs(), pixels(), block_.channels());
    }
  }

  void backward(Context& context, Tensors in, Tensors out, Tensors grad_out,
                Tensors grad_in) const override {
    run_backward(context, in, out, grad_out, grad_in, SideGradients(context.gradients),
                 work(Carver(context.work)), true);
  }
  void backward_input(Context& context, Tensors in, Tensors out, Tensors grad_out,
                      Tensors grad_in) const override {
    Work w = work(Carver(context.work));
    const Between d = between(Carver(context.deferred), w);
    run_backward(context, in, out, grad_out, grad_in, d.sides, w, false);
  }
  void backward_weight(Context& context, Tensors in, Tensors) const override {
    const Saved s = saved(Carver(context.saved));
    Work w = work(Carver(context.work));
    const Between d = between(Carver(context.deferred), w);

    // The input part left every d and norm factor; padded images are packed again as in forward.
    // Panels accumulate a weight's gradient over images and are unpacked once.
    const size_t end = layers_.size() - 1;
    clear(w);
    for (int64_t b = 0; b < shape_.batch; ++b) {
      if (end == 1) {
        pack_hidden(s, b, w.padded[1]);
        weight_gradient(layers_[1], s.layers[1], w.layers[1], w, w.padded[1], w.after, b);
      }
      pack_input(floats(in[0]), b, w.padded[0]);
      weight_gradient(layers_[0], s.layers[0], w.layers[0], w, w.padded[0],
                      end == 1 ? w.hidden : w.after, b);
      if (shortcut_)
        weight_gradient(*shortcut_, s.shortcut, w.shortcut, w, w.padded[0], w.after, b);
    }
    for (size_t i = 0; i <= end; ++i) layers_[i].finish_weight_gradient(context, w.layers[i]);
    if (shortcut_) shortcut_->finish_weight_gradient(context, w.shortcut);
    d.sides.hand_over(context.gradients);
  }

 private:
  struct Saved;
  struct Work;

  /// What the input part leaves for the weight part: the sides, and the arrays of `w` that are
  /// pointed into deferred memory from here on.
  struct Between {
    SideGradients sides;
    int64_t bytes;
  };
  Between between(Carver memory, Work& w) const {
    Between d{SideGradients({}, memory), 0};
    for (size_t i = 0; i < layers_.size(); ++i) layers_[i].defer(memory, d.sides, w.layers[i]);
    if (shortcut_) shortcut_->defer(memory, d.sides, w.shortcut);
    const int64_t all = shape_.batch * layers_[0].conv.outputs();
    w.after = memory.floats(all);
    if (layers_.size() == 2) w.hidden = memory.floats(all);
    d.bytes = memory.bytes();
    return d;
  }

  /// The input part; if `whole`, also the weights' gradients, image by image with it.
  void run_backward(const Context& context, Tensors in, Tensors out, Tensors grad_out,
                    Tensors grad_in, const SideGradients& sides, const Work& w, bool whole) const {
    TUTTI_CHECK(grad_in[0].defined(),
                "a block of a cnn follows the stem, which wants its gradient");
    const Saved s = saved(Carver(context.saved));
    const float* x = floats(in[0]);
    float *dx = floats(grad_in[0]), *after = adds_input_ && whole ? dx : w.after;
    const CnnLayer& last = layers_.back();
    const size_t end = layers_.size() - 1;
    clear(w);

    // Step 1. For every image and channel there are three sums: d, d (y - mean) of the last norm,
    // and d (y - mean) of the shortcut's.
    const int64_t stride = 3 * block_.channels(), each = last.conv.outputs();
    for (int64_t b = 0; b < shape_.batch; ++b) {
      k_.join_backward(floats(grad_out[0]) + b * each, floats(out[0]) + b * each,
                       s.layers[end].image(b, last.conv), last.affine(s.layers[end], b),
                       last.mean(s.layers[end], b), shortcut_of(s, x, b), act_, after + b * each,
                       w.sums + b * stride, pixels(), block_.channels());
    }
    last.backward(context, sides, s.layers[end], w.layers[end], w.sums, w.sums + block_.channels(),
                  stride);
    if (shortcut_)
      shortcut_->backward(context, sides, s.shortcut, w.shortcut, w.sums,
                          w.sums + 2 * block_.channels(), stride);

    // Split in two, d is kept for the weight part, so the input's gradient starts from a copy
    // of it.
    if (adds_input_ && !whole) std::copy_n(after, shape_.batch * each, dx);

    // Steps 2 and 3.
    if (end == 1) second_backward(context, sides, s, w, after, whole);
    first_backward(context, s, w, x, end == 1 ? w.hidden : after, after, dx, whole);
  }

  struct Saved {
    CnnLayer::Saved layers[2], shortcut;
    int64_t bytes;
  };
  Saved saved(Carver memory) const {
    Saved s{};
    for (size_t i = 0; i < layers_.size(); ++i) s.layers[i] = layers_[i].saved(memory);
    if (shortcut_) s.shortcut = shortcut_->saved(memory);
    s.bytes = memory.bytes();
    return s;
  }

  struct Work {
    CnnLayer::Work layers[2], shortcut;
    float* padded[2];        // what a layer reads, one image
    float* padded_gradient;  // gradient of what a layer puts out, one image
    float* sums;             // [batch][3][channels], see step 1
    // d at the last activation for the whole micro-batch, unless it is in the input's gradient
    float* after;
    float* hidden;  // d at the first activation of two
    int64_t bytes;
  };
  Work work(Carver memory) const {
    Work w{};
    for (size_t i = 0; i < layers_.size(); ++i) w.layers[i] = layers_[i].work(memory);
    if (shortcut_) w.shortcut = shortcut_->work(memory);
    for (size_t i = 0; i < layers_.size(); ++i)
      w.padded[i] = memory.floats(layers_[i].conv.padded_inputs());
    w.padded_gradient = memory.floats(layers_[0].conv.padded_outputs());
    w.sums = memory.floats(shape_.batch * 3 * block_.channels());
    const int64_t all = shape_.batch * layers_[0].conv.outputs();
    w.after = memory.floats(adds_input_ ? 0 : all);
    w.hidden = memory.floats(layers_.size() == 2 ? all : 0);
    w.bytes = memory.bytes();
    return w;
  }
  /// Zeroes the borders around images; the passes fill the inside alone.
  void clear(const Work& w) const {
    for (size_t i = 0; i < layers_.size(); ++i)
      std::fill_n(w.padded[i], layers_[i].conv.padded_inputs(), 0.0f);
    std::fill_n(w.padded_gradient, layers_[0].conv.padded_outputs(), 0.0f);
  }

  int64_t pixels() const { return block_.height() * block_.width(); }

  /// What is added before the last activation: a shortcut's layer, the input, or nothing.
  Shortcut shortcut_of(const Saved& s, const float* x, int64_t b) const {
    if (shortcut_)
      return {s.shortcut.image(b, shortcut_->conv), shortcut_->affine(s.shortcut, b),
              shortcut_->mean(s.shortcut, b)};
    return {adds_input_ ? x + b * layers_[0].conv.inputs() : nullptr, {}, nullptr};
  }

  /// Makes the second layer's padded input: norm and activation of what the first put out.
  void pack_hidden(const Saved& s, int64_t b, float* padded) const {
    const CnnLayer& first = layers_[0];
    const Affine affine = first.affine(s.layers[0], b);
    k_.pack(s.layers[0].image(b, first.conv), &affine, act_, padded, block_.height(),
            block_.width(), first.conv.out);
  }

  /// Step 2: from d at the block's last activation to d at the first layer's.
  void second_backward(const Context& context, const SideGradients& sides, const Saved& s,
                       const Work& w, const float* after, bool whole) const {
    const CnnLayer &first = layers_[0], &second = layers_[1];
    const ConvShape& conv = second.conv;
    const int64_t stride = 2 * conv.in;
    second.pack_weight_backward(context, w.layers[1]);
    for (int64_t b = 0; b < shape_.batch; ++b) {
      float* d = w.hidden + b * conv.inputs();

      // Either way this leaves the gradient of the convolution's output in padded_gradient.
      if (whole) {
        pack_hidden(s, b, w.padded[1]);
        weight_gradient(second, s.layers[1], w.layers[1], w, w.padded[1], after, b);
      } else {
        second.norm_backward(s.layers[1], w.layers[1], after, b, w.padded_gradient);
      }
      k_.input_gradient(w.padded_gradient, w.layers[1].backward_panels, d, conv, false);
      k_.join_backward(d, nullptr, s.layers[0].image(b, first.conv), first.affine(s.layers[0], b),
                       first.mean(s.layers[0], b), {}, act_, d, w.sums + b * stride, pixels(),
                       conv.in);
    }
    if (whole) second.finish_weight_gradient(context, w.layers[1]);
    first.backward(context, sides, s.layers[0], w.layers[0], w.sums, w.sums + conv.in, stride);
  }

  /// Step 3: from d at the first layer's activation (and at the block's, for the shortcut) to the
  /// input's gradient.
  void first_backward(const Context& context, const Saved& s, const Work& w, const float* x,
                      const float* d, const float* after, float* dx, bool whole) const {
    const CnnLayer& first = layers_[0];
    first.pack_weight_backward(context, w.layers[0]);
    if (shortcut_) shortcut_->pack_weight_backward(context, w.shortcut);
    for (int64_t b = 0; b < shape_.batch; ++b) {
      if (whole) pack_input(x, b, w.padded[0]);

      // The first convolution writes the input's gradient, or adds to the d that is already there.
      // A shortcut's convolution adds to that.
      layer_gradients(first, s.layers[0], w.layers[0], w, d, b, dx, adds_input_, whole);
      if (shortcut_)
        layer_gradients(*shortcut_, s.shortcut, w.shortcut, w, after, b, dx, true, whole);
    }
    if (!whole) return;
    first.finish_weight_gradient(context, w.layers[0]);
    if (shortcut_) shortcut_->finish_weight_gradient(context, w.shortcut);
  }

  /// One image's gradients of a layer that reads the block's input.
  void layer_gradients(const CnnLayer& layer, const CnnLayer::Saved& s, const CnnLayer::Work& lw,
                       const Work& w, const float* d, int64_t b, float* dx, bool add,
                       bool whole) const {
    if (whole) {
      weight_gradient(layer, s, lw, w, w.padded[0], d, b);
    } else {
      layer.norm_backward(s, lw, d, b, w.padded_gradient);
    }
    k_.input_gradient(w.padded_gradient, lw.backward_panels, dx + b * layer.conv.inputs(),
                      layer.conv, add);
  }

  void pack_input(const float* x, int64_t b, float* padded) const {
    const ConvShape& conv = layers_[0].conv;
    k_.pack(x + b * conv.inputs(), nullptr, act_, padded, conv.height, conv.width, conv.in);
  }
  /// Leaves in padded_gradient the gradient of the convolution's output, of which its weight's is
  /// made.
  void weight_gradient(const CnnLayer& layer, const CnnLayer::Saved& s, const CnnLayer::Work& lw,
                       const Work& w, const float* padded, const float* d, int64_t b) const {
    layer.norm_backward(s, lw, d, b, w.padded_gradient);
    layer.add_weight_gradient(padded, w.padded_gradient, lw, b);
  }

  const CnnBlockShape block_;
  const Activation act_;
  const ConvKernels& k_;
  std::vector<CnnLayer> layers_;
  std::optional<CnnLayer> shortcut_;
  bool adds_input_ = false;  // the shortcut is the input itself
};

}  // namespace

std::unique_ptr<Segment> make_cnn_block(const CnnPlan& plan, size_t index,
                                        const CnnTables& tables) {
  return std::make_unique<CnnBlock>(plan, index, tables.conv);
}

}  // namespace tutti
