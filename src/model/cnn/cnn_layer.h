// A convolution with its norm, as the hand-written segments of the CNN use it: where its memory
// lies, and the norm's arithmetic on sums that the kernels took image by image.
#pragma once

#include "model/cnn/cnn_shape.h"
#include "model/core/deferred.h"
#include "model/core/segment.h"
#include "model/gpt/gpt_segments.h"

namespace tutti {

/// Parameters are those of its block from `first` on. In training, statistics are those of the
/// micro-batch (batch norm) or of each image (group norm); what is kept per image or once is a row
/// of the same arrays.
class CnnLayer {
 public:
  CnnLayer(const CnnShape& shape, const ConvShape& conv, int first)
      : conv(conv), shape_(shape), first_(first) {}

  /// From forward to backward.
  struct Saved {
    float* y;                            // [batch][outputs]: of the convolution
    float *mean, *rstd, *scale, *shift;  // [rows][out]
    float* variance;                     // [out]: batch norm's, unbiased
    float* image(int64_t b, const ConvShape& c) const { return y + b * c.outputs(); }
  };
  Saved saved(Carver& memory) const;

  struct Work {
    float *panels, *backward_panels, *gradient_panels;
    float* moments;    // [batch][2][out]
    float *a, *b, *c;  // [rows][out]
  };
  Work work(Carver& memory) const;

  const float* weight(const Context& context) const { return floats(context.parameters[first_]); }
  float* weight_gradient(const Context& context) const { return floats(context.gradients[first_]); }

  /// mean to shift of `saved`, from the moments of all images; outside of training batch norm has
  /// its buffers.
  void statistics(const Context& context, const Saved& saved, const Work& work) const;
  /// Whether statistics() reads the moments.
  bool needs_moments(const Context& context) const;
  Affine affine(const Saved& saved, int64_t image) const;
  const float* mean(const Saved& saved, int64_t image) const { return saved.mean + row(image); }

  /// From sums of d and d (y - mean) over each image, `stride` floats apart: the gradients of the
  /// norm's parameters and its buffers' proposals, to `sides`, and the factors of gradient().
  void backward(const Context& context, const SideGradients& sides, const Saved& saved,
                const Work& work, const float* sums, const float* centred_sums,
                int64_t stride) const;
  /// What a backward in two parts keeps of those: takes memory for all of `sides`, and for the
  /// factors.
  void defer(Carver& memory, SideGradients& sides, Work& work) const;
  NormGradient gradient(const Saved& saved, const Work& work, int64_t image) const;

  const ConvShape conv;

 private:
  bool by_image() const { return shape_.norm == NormKind::kGroup; }
  int64_t rows() const { return by_image() ? shape_.batch : 1; }
  int64_t row(int64_t image) const { return by_image() ? image * conv.out : 0; }
  int64_t pixels() const { return conv.out_height() * conv.out_width(); }
  void batch_statistics(const Saved& saved, const Work& work) const;
  void group_statistics(const Saved& saved, const Work& work) const;

  const CnnShape shape_;
  const int first_;
};

}  // namespace tutti
