// One convolution of a column, by hand, with its norm, what is added to it, and its activation. As
// in a block, d is the gradient of what the activation reads, and backward goes over the
// micro-batch twice, since a norm's gradient needs sums over all of it. In two parts, d and the
// factors of the norms are kept.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "model/cnn/cnn_layer.h"
#include "model/cnn/cnn_segments.h"

namespace tutti {

namespace {

class CnnColumn final : public Segment {
 public:
  CnnColumn(CnnColumnLayer layer, const CnnShape& shape, const ConvKernels& kernels)
      : spec_(std::move(layer)),
        shape_(shape),
        k_(kernels),
        main_(shape, spec_.conv, spec_.first, kernels) {
    if (spec_.shortcut) shortcut_.emplace(shape, *spec_.shortcut, spec_.shortcut_first, kernels);
  }

  std::string name() const override { return spec_.name; }
  std::vector<Border> inputs() const override { return spec_.inputs; }
  std::vector<Border> outputs() const override { return spec_.outputs; }
  bool splits() const override { return true; }
  int64_t saved_bytes() const override { return saved(Carver{}).bytes; }
  int64_t work_bytes() const override { return work(Carver{}).bytes; }
  int64_t deferred_bytes() const override {
    Work w{};
    return between(Carver{}, w).bytes;
  }
  double flops() const override {
    return (spec_.conv.flops() + (shortcut_ ? spec_.shortcut->flops() : 0)) *
           static_cast<double>(shape_.batch);
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const Saved s = saved(Carver(context.saved));
    const Work w = work(Carver(context.work));
    clear(w);
    main_.pack_weight(context, w.main);
    if (shortcut_) shortcut_->pack_weight(context, w.shortcut);
    for (int64_t b = 0; b < shape_.batch; ++b) {
      pack_main(floats(in[0]), b, w);
      main_.convolve(context, w.padded, s.main, w.main, b);
      if (!shortcut_) continue;
      pack_shortcut(floats(in[1]), b, w);
      shortcut_->convolve(context, w.padded_shortcut, s.shortcut, w.shortcut, b);
    }

    main_.statistics(context, s.main, w.main);
    if (shortcut_) shortcut_->statistics(context, s.shortcut, w.shortcut);
    for (int64_t b = 0; b < shape_.batch; ++b) {
      k_.join(s.main.image(b, spec_.conv), main_.affine(s.main, b), added(s, w, in, b),
              shape_.activation, floats(out[0]) + b * spec_.conv.outputs(), pixels(),
              spec_.conv.out);
    }
  }

  void backward(Context& context, Tensors in, Tensors out, Tensors grad_out,
                Tensors grad_in) const override {
    const Work w = work(Carver(context.work));
    input_part(context, in, out, grad_out, SideGradients(context.gradients), w);
    gradients(context, in, grad_in, w, true);
  }
  void backward_input(Context& context, Tensors in, Tensors out, Tensors grad_out,
                      Tensors grad_in) const override {
    Work w = work(Carver(context.work));
    const Between kept = between(Carver(context.deferred), w);
    input_part(context, in, out, grad_out, kept.sides, w);
    gradients(context, in, grad_in, w, false);
  }
  void backward_weight(Context& context, Tensors in, Tensors) const override {
    Work w = work(Carver(context.work));
    const Between kept = between(Carver(context.deferred), w);
    kept.sides.hand_over(context.gradients);
    gradients(context, in, {}, w, true);
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
    Between kept{SideGradients({}, memory), 0};
    main_.defer(memory, kept.sides, w.main);
    if (shortcut_) shortcut_->defer(memory, kept.sides, w.shortcut);
    w.d = memory.floats(shape_.batch * spec_.conv.outputs());
    kept.bytes = memory.bytes();
    return kept;
  }

  /// Makes d, and of its sums over the images the norms' gradients and factors.
  void input_part(const Context& context, Tensors in, Tensors out, Tensors grad_out,
                  const SideGradients& sides, const Work& w) const {
    const Saved s = saved(Carver(context.saved));
    const int64_t channels = spec_.conv.out, stride = 3 * channels, each = spec_.conv.outputs();
    for (int64_t b = 0; b < shape_.batch; ++b) {
      k_.join_backward(floats(grad_out[0]) + b * each, floats(out[0]) + b * each,
                       s.main.image(b, spec_.conv), main_.affine(s.main, b), main_.mean(s.main, b),
                       added(s, w, in, b), shape_.activation, w.d + b * each, w.sums + b * stride,
                       pixels(), channels);
    }
    main_.backward(context, sides, s.main, w.main, w.sums, w.sums + channels, stride);
    if (shortcut_)
      shortcut_->backward(context, sides, s.shortcut, w.shortcut, w.sums, w.sums + 2 * channels,
                          stride);
  }

  /// From d, image by image: the weights' gradients if `weights`, and those of the inputs unless
  /// there are none to write.
  void gradients(const Context& context, Tensors in, Tensors grad_in, const Work& w,
                 bool weights) const {
    const Saved s = saved(Carver(context.saved));
    float *dx = gradient_of(grad_in, 0), *dshortcut = gradient_of(grad_in, 1);
    clear(w);
    if (dx != nullptr) main_.pack_weight_backward(context, w.main);
    if (shortcut_ && dshortcut != nullptr) shortcut_->pack_weight_backward(context, w.shortcut);
    for (int64_t b = 0; b < shape_.batch; ++b) {
      main_.norm_backward(s.main, w.main, w.d, b, w.padded_gradient);
      if (weights) {
        pack_main(floats(in[0]), b, w);
        main_.add_weight_gradient(w.padded, w.padded_gradient, w.main, b);
      }
      if (dx != nullptr) input_gradient(w, dx, b);
      if (spec_.own && dshortcut != nullptr) own_gradient(w, dshortcut, b);
      if (!shortcut_) continue;

      shortcut_->norm_backward(s.shortcut, w.shortcut, w.d, b, w.padded_gradient);
      if (weights) {
        pack_shortcut(floats(in[1]), b, w);
        shortcut_->add_weight_gradient(w.padded_shortcut, w.padded_gradient, w.shortcut, b);
      }
      if (dshortcut == nullptr) continue;

      // A 1 x 1 kernel with a stride adds to the pixels that it reads.
      float* image = dshortcut + b * spec_.shortcut->inputs();
      std::fill_n(image, spec_.shortcut->inputs(), 0.0f);
      k_.input_gradient(w.padded_gradient, w.shortcut.backward_panels, image, *spec_.shortcut,
                        true);
    }
    if (!weights) return;
    main_.finish_weight_gradient(context, w.main);
    if (shortcut_) shortcut_->finish_weight_gradient(context, w.shortcut);
  }
  static float* gradient_of(Tensors grad_in, size_t place) {
    return place < grad_in.size() && grad_in[place].defined() ? floats(grad_in[place]) : nullptr;
  }

  /// One image's gradient of input 0. Where the input passes by, it is added to the one that
  /// came back.
  void input_gradient(const Work& w, float* dx, int64_t b) const {
    const ConvShape& conv = spec_.conv;
    if (spec_.parts == 1) {
      k_.input_gradient(w.padded_gradient, w.main.backward_panels, dx + b * conv.inputs(), conv,
                        passes());
      return;
    }
    k_.input_gradient(w.padded_gradient, w.main.backward_panels, w.image, conv, false);
    for_parts(b, [&](int64_t whole, int64_t part, size_t bytes) {
      std::memcpy(dx + part, w.image + whole, bytes);
    });
  }
  /// One image's gradient of input 1 where this column's channels of it were added.
  void own_gradient(const Work& w, float* dx, int64_t b) const {
    const int64_t own = spec_.conv.out, all = own * shape_.columns;
    float* image = dx + b * pixels() * all;
    std::fill_n(image, pixels() * all, 0.0f);
    for (int64_t p = 0; p < pixels(); ++p)
      std::copy_n(w.d + (b * pixels() + p) * own, own, image + p * all + *spec_.own * own);
  }

  /// Calls copy(offset in the whole image, offset in the gathered parts, bytes) for every pixel's
  /// channels of every part.
  template <typename Copy>
  void for_parts(int64_t b, Copy&& copy) const {
    const ConvShape& conv = spec_.conv;
    const int64_t count = conv.height * conv.width, each = conv.in / spec_.parts;
    for (int64_t part = 0; part < spec_.parts; ++part)
      for (int64_t p = 0; p < count; ++p)
        copy(p * conv.in + part * each, ((part * shape_.batch + b) * count + p) * each,
             static_cast<size_t>(each) * sizeof(float));
  }
  /// What the convolutions read, with the rim of zeros.
  void pack_main(const float* x, int64_t b, const Work& w) const {
    const float* image = x + b * spec_.conv.inputs();
    if (spec_.parts > 1) {
      for_parts(b, [&](int64_t whole, int64_t part, size_t bytes) {
        std::memcpy(w.image + whole, x + part, bytes);
      });
      image = w.image;
    }
    pack(spec_.conv, image, w.padded);
  }
  void pack_shortcut(const float* x, int64_t b, const Work& w) const {
    pack(*spec_.shortcut, x + b * spec_.shortcut->inputs(), w.padded_shortcut);
  }
  void pack(const ConvShape& conv, const float* image, float* padded) const {
    k_.pack(image, nullptr, shape_.activation, padded, conv.height, conv.width, conv.in);
  }

  /// What is added before the activation.
  Shortcut added(const Saved& s, const Work& w, Tensors in, int64_t b) const {
    if (shortcut_)
      return {s.shortcut.image(b, *spec_.shortcut), shortcut_->affine(s.shortcut, b),
              shortcut_->mean(s.shortcut, b)};
    if (!spec_.own) return {};
    const int64_t own = spec_.conv.out, all = own * shape_.columns;
    const float* image = floats(in[1]) + b * pixels() * all + *spec_.own * own;
    for (int64_t p = 0; p < pixels(); ++p) std::copy_n(image + p * all, own, w.own + p * own);
    return {w.own, {}, nullptr};
  }

  struct Saved {
    CnnLayer::Saved main, shortcut;
    int64_t bytes;
  };
  Saved saved(Carver memory) const {
    Saved s{};
    s.main = main_.saved(memory);
    if (shortcut_) s.shortcut = shortcut_->saved(memory);
    s.bytes = memory.bytes();
    return s;
  }
  struct Work {
    CnnLayer::Work main, shortcut;
    float *padded, *padded_shortcut;  // what the convolutions read, one image
    float* padded_gradient;           // the gradient of what one of them puts out, one image
    float* image;                     // of gathered parts, one image or its gradient
    float* own;                       // this column's channels of one image
    float* sums;                      // [batch][3][channels] of join_backward
    float* d;                         // of the whole micro-batch
    int64_t bytes;
  };
  Work work(Carver memory) const {
    const ConvShape& conv = spec_.conv;
    Work w{};
    w.main = main_.work(memory);
    if (shortcut_) w.shortcut = shortcut_->work(memory);
    w.padded = memory.floats(conv.padded_inputs());
    w.padded_shortcut = memory.floats(shortcut_ ? spec_.shortcut->padded_inputs() : 0);
    w.padded_gradient = memory.floats(conv.padded_outputs());
    w.image = memory.floats(spec_.parts > 1 ? conv.inputs() : 0);
    w.own = memory.floats(spec_.own ? conv.outputs() : 0);
    w.sums = memory.floats(shape_.batch * 3 * conv.out);
    w.d = memory.floats(shape_.batch * conv.outputs());
    w.bytes = memory.bytes();
    return w;
  }
  /// Zeroes the borders around images; the passes fill the inside alone.
  void clear(const Work& w) const {
    std::fill_n(w.padded, spec_.conv.padded_inputs(), 0.0f);
    if (shortcut_) std::fill_n(w.padded_shortcut, spec_.shortcut->padded_inputs(), 0.0f);
    std::fill_n(w.padded_gradient, spec_.conv.padded_outputs(), 0.0f);
  }

  int64_t pixels() const { return spec_.conv.out_height() * spec_.conv.out_width(); }
  bool passes() const { return spec_.outputs.size() > 1; }

  const CnnColumnLayer spec_;
  const CnnShape shape_;
  const ConvKernels& k_;
  const CnnLayer main_;
  std::optional<CnnLayer> shortcut_;
};

}  // namespace

std::unique_ptr<Segment> make_cnn_column(const CnnColumnLayer& layer, const CnnShape& shape,
                                         const ConvKernels& kernels) {
  return std::make_unique<CnnColumn>(layer, shape, kernels);
}

}  // namespace tutti
