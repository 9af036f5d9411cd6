// The stem and the head of the CNN, by hand. The stem pools as it applies norm and activation, so
// nothing of full size but the convolution's output is kept.
#include <algorithm>

#include "model/cnn/cnn_layer.h"
#include "model/cnn/cnn_segments.h"

namespace tutti {

namespace {

class CnnStem final : public CnnSegment {
 public:
  CnnStem(const CnnPlan& plan, Border images, Border out, const ConvKernels& kernels)
      : CnnSegment("stem", plan.shape, std::move(images), std::move(out)),
        k_(kernels),
        layer_(plan.shape, plan.stem, 0, kernels),
        act_(plan.shape.activation) {}

  int64_t saved_bytes() const override { return saved(Carver{}).bytes; }
  int64_t work_bytes() const override { return work(Carver{}).bytes; }
  int64_t deferred_bytes() const override {
    Work w{};
    return between(Carver{}, w).bytes;
  }
  double flops() const override { return layer_.conv.flops() * static_cast<double>(shape_.batch); }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const ConvShape& conv = layer_.conv;
    const CnnLayer::Saved s = saved(Carver(context.saved)).layer;
    const Work w = work(Carver(context.work));

    // As in a block: the convolution image by image, then the norm's statistics over the
    // micro-batch, then what needs them.
    clear(w);
    layer_.pack_weight(context, w.layer);
    for (int64_t b = 0; b < shape_.batch; ++b) {
      k_.pack_planes(floats(in[0]) + b * conv.inputs(), w.padded, conv.height, conv.width, conv.in);
      layer_.convolve(context, w.padded, s, w.layer, b);
    }
    layer_.statistics(context, s, w.layer);
    for (int64_t b = 0; b < shape_.batch; ++b) {
      k_.pool(s.image(b, conv), layer_.affine(s, b), act_, shape_.pool,
              floats(out[0]) + b * pooled(), conv.height, conv.width, conv.out);
    }
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out, Tensors) const override {
    const Work w = work(Carver(context.work));

    // Two passes over the images: the norm's sums must be complete before a gradient of the
    // convolution's output can be made. Images have no gradient.
    norm_gradients(context, SideGradients(context.gradients), w, floats(grad_out[0]));
    weight_gradient(context, w, floats(in[0]), floats(grad_out[0]));
  }
  void backward_input(Context& context, Tensors, Tensors, Tensors grad_out,
                      Tensors) const override {
    Work w = work(Carver(context.work));
    const Between d = between(Carver(context.deferred), w);

    // Everything about a stem but the norm's sums is weights' gradients, so only those are
    // made here.
    defer(grad_out[0], d.dout);
    norm_gradients(context, d.sides, w, d.dout);
  }
  void backward_weight(Context& context, Tensors in, Tensors) const override {
    Work w = work(Carver(context.work));
    const Between d = between(Carver(context.deferred), w);
    weight_gradient(context, w, floats(in[0]), d.dout);
    d.sides.hand_over(context.gradients);
  }

 private:
  struct Work;

  /// What the input part leaves for the weight part: the gradient of the output, and the norm's
  /// factors, whose arrays in `w` are pointed into deferred memory from here on.
  struct Between {
    SideGradients sides;
    float* dout;
    int64_t bytes;
  };
  Between between(Carver memory, Work& w) const {
    Between d{SideGradients({}, memory), nullptr, 0};
    layer_.defer(memory, d.sides, w.layer);
    d.dout = memory.floats(shape_.batch * pooled());
    d.bytes = memory.bytes();
    return d;
  }

  /// Sums d and d (y - mean) image by image, and makes the norm's gradients and factors of them.
  void norm_gradients(const Context& context, const SideGradients& sides, const Work& w,
                      const float* dout) const {
    const ConvShape& conv = layer_.conv;
    const CnnLayer::Saved s = saved(Carver(context.saved)).layer;
    const int64_t stride = 2 * conv.out;
    for (int64_t b = 0; b < shape_.batch; ++b) {
      k_.pool_sums(dout + b * pooled(), s.image(b, conv), layer_.affine(s, b), layer_.mean(s, b),
                   act_, shape_.pool, w.sums + b * stride, conv.height, conv.width, conv.out);
    }
    layer_.backward(context, sides, s, w.layer, w.sums, w.sums + conv.out, stride);
  }

  /// The convolution's weight's gradient: the pool and the norm backward, image by image.
  void weight_gradient(const Context& context, const Work& w, const float* images,
                       const float* dout) const {
    const ConvShape& conv = layer_.conv;
    const CnnLayer::Saved s = saved(Carver(context.saved)).layer;
    clear(w);

    for (int64_t b = 0; b < shape_.batch; ++b) {
      k_.pool_backward(dout + b * pooled(), s.image(b, conv), layer_.affine(s, b),
                       layer_.gradient(s, w.layer, b), act_, shape_.pool, w.padded_gradient,
                       conv.height, conv.width, conv.out);
      k_.pack_planes(images + b * conv.inputs(), w.padded, conv.height, conv.width, conv.in);
      layer_.add_weight_gradient(w.padded, w.padded_gradient, w.layer, b);
    }
    layer_.finish_weight_gradient(context, w.layer);
  }

  // The layouts of saved memory and of scratch. Without memory they only count.
  struct Saved {
    CnnLayer::Saved layer;
    int64_t bytes;
  };
  Saved saved(Carver memory) const {
    Saved s{layer_.saved(memory), 0};
    s.bytes = memory.bytes();
    return s;
  }
  struct Work {
    CnnLayer::Work layer;
    float *padded, *padded_gradient, *sums;
    int64_t bytes;
  };
  Work work(Carver memory) const {
    Work w{};
    w.layer = layer_.work(memory);
    w.padded = memory.floats(layer_.conv.padded_inputs());
    w.padded_gradient = memory.floats(layer_.conv.padded_outputs());
    w.sums = memory.floats(shape_.batch * 2 * layer_.conv.out);
    w.bytes = memory.bytes();
    return w;
  }
  void clear(const Work& w) const {
    std::fill_n(w.padded, layer_.conv.padded_inputs(), 0.0f);
    std::fill_n(w.padded_gradient, layer_.conv.padded_outputs(), 0.0f);
  }

  // Floats of one pooled image.
  int64_t pooled() const {
    return layer_.conv.height / 2 * (layer_.conv.width / 2) * layer_.conv.out;
  }

  const ConvKernels& k_;
  const CnnLayer layer_;
  const Activation act_;
};

class CnnHead final : public CnnSegment {
 public:
  CnnHead(const CnnShape& shape, const Border& images, Border out, const CnnTables& tables)
      : CnnSegment("head", shape, images, std::move(out)),
        pixels_(images.dims[1] * images.dims[2]),
        features_(images.dims[3]),
        tables_(tables) {}

  int64_t saved_bytes() const override { return saved(Carver{}).bytes; }
  int64_t work_bytes() const override { return work(Carver{}).bytes; }
  int64_t deferred_bytes() const override {
    return shape_.batch * shape_.classes * static_cast<int64_t>(sizeof(float));  // dlogits
  }
  double flops() const override {
    return 2.0 * static_cast<double>(shape_.batch * features_ * shape_.classes);
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    const Kernels& k = tables_.kernels;
    const Dropout dropout = cnn_dropout(shape_, context.pass);
    for (int64_t b = 0; b < shape_.batch; ++b) {
      tables_.conv.average(floats(in[0]) + b * pixels_ * features_, s.features + b * features_,
                           pixels_, features_);
    }

    // The kernel adds what it drops to a residual and a bias; with zeros for both it leaves the
    // features times their mask.
    if (dropout.rate > 0) {
      std::fill_n(w.features, shape_.batch * features_, 0.0f);
      k.bias_residual(s.features, w.features, w.features, s.features, shape_.batch, features_,
                      &dropout);
    }

    // logits = features weight^T + bias.
    k.matmul.nt(s.features, floats(context.parameters[0]), floats(out[0]), shape_.batch,
                shape_.classes, features_, w.scratch);
    k.add_bias(floats(out[0]), floats(context.parameters[1]), shape_.batch, shape_.classes);
  }

  void backward(Context& context, Tensors, Tensors, Tensors grad_out,
                Tensors grad_in) const override {
    weight_part(context, floats(grad_out[0]));
    input_part(context, floats(grad_out[0]), floats(grad_in[0]));
  }
  void backward_input(Context& context, Tensors, Tensors, Tensors grad_out,
                      Tensors grad_in) const override {
    defer(grad_out[0], context.deferred.data());
    input_part(context, floats(grad_out[0]), floats(grad_in[0]));
  }
  void backward_weight(Context& context, Tensors, Tensors) const override {
    weight_part(context, reinterpret_cast<const float*>(context.deferred.data()));
  }

 private:
  /// The gradients of weight and bias, from the saved features.
  void weight_part(const Context& context, const float* dlogits) const {
    const Saved s = saved(Carver(context.saved));
    const Kernels& k = tables_.kernels;
    k.column_sums(dlogits, floats(context.gradients[1]), shape_.batch, shape_.classes);
    k.matmul.tn(dlogits, s.features, floats(context.gradients[0]), shape_.classes, features_,
                shape_.batch, work(Carver(context.work)).scratch);
  }

  /// The gradient of the images: through the linear layer, dropout and the mean.
  void input_part(const Context& context, const float* dlogits, float* dx) const {
    const Work w = work(Carver(context.work));
    const Kernels& k = tables_.kernels;
    const Dropout dropout = cnn_dropout(shape_, context.pass);
    k.matmul.nn(dlogits, floats(context.parameters[0]), w.features, shape_.batch, features_,
                shape_.classes, w.scratch);
    if (dropout.rate > 0)
      k.dropout_backward(w.features, w.features, w.sums, shape_.batch, features_, &dropout);
    for (int64_t b = 0; b < shape_.batch; ++b) {
      tables_.conv.average_backward(w.features + b * features_, dx + b * pixels_ * features_,
                                    pixels_, features_);
    }
  }

  struct Saved {
    float* features;
    int64_t bytes;
  };
  Saved saved(Carver memory) const {
    Saved s{memory.floats(shape_.batch * features_), 0};
    s.bytes = memory.bytes();
    return s;
  }
  struct Work {
    float *scratch, *features, *sums;
    int64_t bytes;
  };
  Work work(Carver memory) const {
    Work w{};
    w.scratch =
        memory.floats(tables_.kernels.matmul.layer_work(shape_.batch, features_, shape_.classes));
    w.features = memory.floats(shape_.batch * features_);
    w.sums = memory.floats(features_);
    w.bytes = memory.bytes();
    return w;
  }

  const int64_t pixels_, features_;
  const CnnTables tables_;
};

}  // namespace

std::unique_ptr<Segment> make_cnn_stem(const CnnPlan& plan, const Border& images, const Border& out,
                                       const CnnTables& tables) {
  return std::make_unique<CnnStem>(plan, images, out, tables.conv);
}
std::unique_ptr<Segment> make_cnn_head(const CnnShape& shape, const Border& in, const Border& out,
                                       const CnnTables& tables) {
  return std::make_unique<CnnHead>(shape, in, out, tables);
}

Border cnn_stream(const CnnPlan& plan, size_t index) {
  if (index == 0)
    return {"x",
            {plan.shape.batch, plan.stem.height / 2, plan.stem.width / 2, plan.stem.out},
            at::kFloat};
  const CnnBlockShape& block = plan.blocks[index - 1];
  return {"x", {plan.shape.batch, block.height(), block.width(), block.channels()}, at::kFloat};
}
Border cnn_logits(const CnnPlan& plan) {
  return {"logits", {plan.shape.batch, plan.shape.classes}, at::kFloat};
}

}  // namespace tutti
