// Convolutions of one image at a time and the passes around them: norm, activation, residual sums,
// pooling. They work on plain float32 pointers, on one thread, and exist once per instruction set;
// none allocates.
//
// What all of them promise:
//   - An image is stored densely as [height, width, channels]. What a convolution reads is stored
//     `padded`, as [height + 2, width + 2, channels], and its rim holds zeros: the passes that fill
//     such an array write the inside alone.
//   - An element of a convolution is one chain of FMAs in the order (row, column, channel) of the
//     kernel; sums over an image run over pixels in four interleaved chains. So bits depend neither
//     on how the work is cut nor on the instruction set, as long as the activation's do not.
//   - NaN or infinity in gives NaN or infinity out.
#pragma once

#include <cstdint>

#include "tensor/kernels.h"

namespace tutti {

/// A convolution with a kernel of 3 x 3 and a rim of one zero, or of 1 x 1 without a rim.
struct ConvShape {
  int64_t height, width, in, out;
  int64_t kernel = 3, stride = 1;
  int64_t out_height() const { return (height - 1) / stride + 1; }
  int64_t out_width() const { return (width - 1) / stride + 1; }
  int64_t inputs() const { return height * width * in; }
  int64_t outputs() const { return out_height() * out_width() * out; }
  int64_t padded_inputs() const { return (height + 2) * (width + 2) * in; }
  int64_t padded_outputs() const { return (out_height() + 2) * (out_width() + 2) * out; }
  int64_t weights() const { return out * in * kernel * kernel; }
  /// Floats of the weights as the products read them: in strips of kConvStrip columns, with zeros
  /// after the last column.
  int64_t panels() const;           ///< for forward and the weight's gradient
  int64_t backward_panels() const;  ///< for the input's gradient
  double flops() const { return 2.0 * static_cast<double>(outputs() * in * kernel * kernel); }
};

/// Columns of a strip of packed weights: one tile of AVX-512 (2 x 16), two of AVX2 (2 x 8).
constexpr int64_t kConvStrip = 32;

/// u = y scale + shift, channel by channel.
struct Affine {
  const float *scale, *shift;
};

/// What is added to y scale + shift before the activation: nothing, x itself, or x scale + shift.
struct Shortcut {
  const float* x = nullptr;
  Affine affine{};              ///< null: x itself
  const float* mean = nullptr;  ///< of x, where it has an affine
};

/// dy = a d + (b (y - mean) + c), channel by channel: the gradient of a norm's input.
struct NormGradient {
  const float *mean, *a, *b, *c;
};

struct ConvKernels {
  /// weight is [out, in, kernel, kernel].
  void (*pack_weight)(const float* weight, float* panels, const ConvShape& shape);
  void (*pack_weight_backward)(const float* weight, float* panels, const ConvShape& shape);
  /// y [out_height, out_width, out] of a padded image.
  void (*forward)(const float* padded, const float* panels, float* y, const ConvShape& shape);
  /// dx [height, width, in] of a padded dy. With `add` it is added to what dx holds. A 1 x 1
  /// kernel with a stride writes only the pixels that it reads, so it needs `add` and a dx that is
  /// filled in.
  void (*input_gradient)(const float* dy, const float* panels, float* dx, const ConvShape& shape,
                         bool add);
  /// This image's weight gradient, as panels; added to what they hold unless this is the
  /// `first` image.
  void (*weight_gradient)(const float* padded, const float* dy, float* panels,
                          const ConvShape& shape, bool first);
  void (*unpack_weight)(const float* panels, float* weight, const ConvShape& shape);

  /// mean[c] and squares[c] = the sum of (y - mean)^2 over the pixels of an image.
  void (*moments)(const float* y, float* mean, float* squares, int64_t pixels, int64_t channels);
  /// padded = act(y scale + shift); without an affine a copy of y.
  void (*pack)(const float* y, const Affine* affine, Activation act, float* padded, int64_t height,
               int64_t width, int64_t channels);
  /// The same copy for an image that is stored as [channels, height, width].
  void (*pack_planes)(const float* image, float* padded, int64_t height, int64_t width,
                      int64_t channels);
  /// out = act(y scale + shift + shortcut)
  void (*join)(const float* y, Affine affine, const Shortcut& shortcut, Activation act, float* out,
               int64_t pixels, int64_t channels);
  /// d = dout act'(u), u as join has it. `out`, if given, is what join wrote, and may spare
  /// computing u. sums: [c] of d, [channels + c] of d (y - mean), and for a shortcut with an affine
  /// [2 channels + c] of d (x - its mean). d may be dout.
  void (*join_backward)(const float* dout, const float* out, const float* y, Affine affine,
                        const float* mean, const Shortcut& shortcut, Activation act, float* d,
                        float* sums, int64_t pixels, int64_t channels);
  /// padded dy: the gradient of a norm's input.
  void (*norm_backward)(const float* d, const float* y, NormGradient gradient, float* padded,
                        int64_t height, int64_t width, int64_t channels);

  /// out [height / 2, width / 2, channels] = pooled act(y scale + shift) over squares of 2 x 2.
  void (*pool)(const float* y, Affine affine, Activation act, Pool pool, float* out, int64_t height,
               int64_t width, int64_t channels);
  /// The sums of join_backward, for the d that dout becomes once it has passed back through the
  /// pool. The gradient of a maximum goes to the first of equal values.
  void (*pool_sums)(const float* dout, const float* y, Affine affine, const float* mean,
                    Activation act, Pool pool, float* sums, int64_t height, int64_t width,
                    int64_t channels);
  /// padded dy of the norm that comes before the pool.
  void (*pool_backward)(const float* dout, const float* y, Affine affine, NormGradient gradient,
                        Activation act, Pool pool, float* padded, int64_t height, int64_t width,
                        int64_t channels);

  /// out [channels] = the mean over the pixels; and its gradient.
  void (*average)(const float* x, float* out, int64_t pixels, int64_t channels);
  void (*average_backward)(const float* dout, float* dx, int64_t pixels, int64_t channels);
};

/// The table of a code path, which the processor must be able to run.
const ConvKernels& conv_kernels(CodePath path);

}  // namespace tutti
