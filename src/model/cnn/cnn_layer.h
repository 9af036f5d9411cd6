// A convolution with its norm, as the hand-written segments of the CNN use it: the layout of its
// memory, and the norm's arithmetic on sums that kernels took image by image.
#pragma once

#include "model/cnn/cnn_shape.h"
#include "model/core/deferred.h"
#include "model/core/segment.h"

namespace tutti {

/// One convolution with its norm. Its parameters are those of its block from `first` on. In
/// training, statistics are those of the micro-batch (batch norm) or of each image (group norm).
/// Arrays [rows][out] have a row per image for group norm, else one row in all.
class CnnLayer {
 public:
  CnnLayer(const CnnShape& shape, const ConvShape& conv, int first, const ConvKernels& kernels)
      : conv(conv), shape_(shape), first_(first), k_(kernels) {}

  /// What is kept from forward to backward.
  struct Saved {
    float* y;                            // [batch][outputs]: what the convolution puts out
    float *mean, *rstd, *scale, *shift;  // [rows][out]
    float* variance;                     // [out]: batch norm's, unbiased
    float* image(int64_t b, const ConvShape& c) const { return y + b * c.outputs(); }
  };
  Saved saved(Carver& memory) const;

  /// Scratch: packed weights, moments per image, and the factors of the gradient of y.
  struct Work {
    float *panels, *backward_panels, *gradient_panels;
    float* moments;    // [batch][2][out]
    float *a, *b, *c;  // [rows][out]
  };
  Work work(Carver& memory) const;

  /// One image through the convolution, and its moments if the norm needs them.
  void convolve(const Context& context, const float* padded, const Saved& saved, const Work& work,
                int64_t image) const;
  /// Fills `mean` to `shift` of `saved` from the moments of all images. Outside of training batch
  /// norm takes its buffers instead.
  void statistics(const Context& context, const Saved& saved, const Work& work) const;
  /// The norm as y scale + shift, for one image; and the mean that it subtracts.
  Affine affine(const Saved& saved, int64_t image) const;
  const float* mean(const Saved& saved, int64_t image) const { return saved.mean + row(image); }

  /// Takes sums of d and d (y - mean) over each image, `stride` floats apart. Writes the gradients
  /// of the norm's parameters and its buffers' proposals to `sides`, and the factors of gradient()
  /// to `work`.
  void backward(const Context& context, const SideGradients& sides, const Saved& saved,
                const Work& work, const float* sums, const float* centred_sums,
                int64_t stride) const;
  /// Takes deferred memory for what a backward in two parts keeps of these: `sides` and factors.
  void defer(Carver& memory, SideGradients& sides, Work& work) const;
  /// The factors by which kernels turn d of one image into the gradient of y.
  NormGradient gradient(const Saved& saved, const Work& work, int64_t image) const;
  /// Makes the gradient of y of one image, padded, of d of the micro-batch.
  void norm_backward(const Saved& saved, const Work& work, const float* d, int64_t image,
                     float* padded_gradient) const;
  /// Adds one image's gradient of the weight to the panels, which the first image overwrites.
  void add_weight_gradient(const float* padded, const float* padded_gradient, const Work& work,
                           int64_t image) const {
    k_.weight_gradient(padded, padded_gradient, work.gradient_panels, conv, image == 0);
  }
  /// The panels become the weight's gradient.
  void finish_weight_gradient(const Context& context, const Work& work) const {
    k_.unpack_weight(work.gradient_panels, floats(context.gradients[first_]), conv);
  }
  void pack_weight(const Context& context, const Work& work) const {
    k_.pack_weight(floats(context.parameters[first_]), work.panels, conv);
  }
  void pack_weight_backward(const Context& context, const Work& work) const {
    k_.pack_weight_backward(floats(context.parameters[first_]), work.backward_panels, conv);
  }

  const ConvShape conv;

 private:
  /// Whether statistics() reads the moments.
  bool needs_moments(const Context& context) const;
  bool by_image() const { return shape_.norm == NormKind::kGroup; }
  int64_t rows() const { return by_image() ? shape_.batch : 1; }
  int64_t row(int64_t image) const { return by_image() ? image * conv.out : 0; }
  int64_t pixels() const { return conv.out_height() * conv.out_width(); }
  void batch_statistics(const Saved& saved, const Work& work) const;
  void group_statistics(const Saved& saved, const Work& work) const;

  const CnnShape shape_;
  const int first_;
  const ConvKernels& k_;
};

}  // namespace tutti
