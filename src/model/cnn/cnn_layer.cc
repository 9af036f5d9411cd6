// The arithmetic of a convolution's norm.
//   y      what the convolution puts out
//   n      (y - mean) rstd
//   g      the norm's scale (gain)
//   d      the gradient of the norm's output
// The gradient of y is
//   batch norm   g rstd (d - mean(d) - n mean(d n)), means over micro-batch and pixels
//   group norm   rstd (g d - mean(g d) - n mean(g d n)), means over a group's channels and pixels
//                in an image
// Both have the form a d + (b (y - mean) + c) with factors a, b, c per channel, which is what
// kernels apply. Sums over images and channels run in float64 and in order.
#include "model/cnn/cnn_layer.h"

#include <algorithm>
#include <cmath>

namespace tutti {

namespace {

// Places of a layer's parameters, from its first. Without a norm the bias follows the weight.
enum { kWeight, kScale, kShift, kRunningMean, kRunningVariance, kBias = kScale };

}  // namespace

CnnLayer::Saved CnnLayer::saved(Carver& memory) const {
  Saved s{};
  s.y = memory.floats(shape_.batch * conv.outputs());
  for (float** array : {&s.mean, &s.rstd, &s.scale, &s.shift})
    *array = memory.floats(rows() * conv.out);
  s.variance = memory.floats(conv.out);
  return s;
}

CnnLayer::Work CnnLayer::work(Carver& memory) const {
  Work w{};
  w.panels = memory.floats(conv.panels());
  w.backward_panels = memory.floats(conv.backward_panels());
  w.gradient_panels = memory.floats(conv.panels());
  w.moments = memory.floats(shape_.batch * 2 * conv.out);
  for (float** array : {&w.a, &w.b, &w.c}) *array = memory.floats(rows() * conv.out);
  return w;
}

bool CnnLayer::needs_moments(const Context& context) const {
  return shape_.norm == NormKind::kGroup ||
         (shape_.norm == NormKind::kBatch && context.pass.training);
}

void CnnLayer::convolve(const Context& context, const float* padded, const Saved& s, const Work& w,
                        int64_t image) const {
  float *y = s.image(image, conv), *moments = w.moments + 2 * image * conv.out;
  k_.forward(padded, w.panels, y, conv);
  if (needs_moments(context)) k_.moments(y, moments, moments + conv.out, pixels(), conv.out);
}

void CnnLayer::norm_backward(const Saved& s, const Work& w, const float* d, int64_t image,
                             float* padded_gradient) const {
  k_.norm_backward(d + image * conv.outputs(), s.image(image, conv), gradient(s, w, image),
                   padded_gradient, conv.out_height(), conv.out_width(), conv.out);
}

// Combines the images' own means and centred squares (Chan). Nothing is lost by cancellation, as it
// would be with sums of y^2.
void CnnLayer::batch_statistics(const Saved& s, const Work& w) const {
  const int64_t channels = conv.out, batch = shape_.batch;
  const double count = static_cast<double>(batch * pixels());
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0, squares = 0;
    for (int64_t b = 0; b < batch; ++b) sum += w.moments[2 * b * channels + c];
    const double mean = sum / static_cast<double>(batch);
    for (int64_t b = 0; b < batch; ++b) {
      const double apart = w.moments[2 * b * channels + c] - mean;
      squares +=
          w.moments[(2 * b + 1) * channels + c] + static_cast<double>(pixels()) * apart * apart;
    }

    // The norm divides by the biased deviation; the running variance is unbiased, as in torch.
    s.mean[c] = static_cast<float>(mean);
    s.rstd[c] = static_cast<float>(1 / std::sqrt(squares / count + kCnnNormEps));
    s.variance[c] = static_cast<float>(squares / std::max(count - 1, 1.0));
  }
}

// The same combination over a group's channels within one image. Every channel of the group gets a
// copy of the result, so that kernels look up one row per image.
void CnnLayer::group_statistics(const Saved& s, const Work& w) const {
  const int64_t channels = conv.out, groups = shape_.groups(channels), each = channels / groups;
  for (int64_t b = 0; b < shape_.batch; ++b) {
    const float *means = w.moments + 2 * b * channels, *all_squares = means + channels;
    for (int64_t from = 0; from < channels; from += each) {
      double sum = 0, squares = 0;
      for (int64_t c = from; c < from + each; ++c) sum += means[c];
      const double mean = sum / static_cast<double>(each);
      for (int64_t c = from; c < from + each; ++c) {
        const double apart = means[c] - mean;
        squares += all_squares[c] + static_cast<double>(pixels()) * apart * apart;
      }
      const double rstd =
          1 / std::sqrt(squares / static_cast<double>(each * pixels()) + kCnnNormEps);
      std::fill_n(s.mean + b * channels + from, each, static_cast<float>(mean));
      std::fill_n(s.rstd + b * channels + from, each, static_cast<float>(rstd));
    }
  }
}

void CnnLayer::statistics(const Context& context, const Saved& s, const Work& w) const {
  const int64_t channels = conv.out;
  const auto parameter = [&](int i) { return floats(context.parameters[first_ + i]); };
  if (shape_.norm == NormKind::kNone) {
    // Without a norm it is the identity plus the bias, so that all kinds go through the
    // same kernels.
    std::fill_n(s.mean, channels, 0.0f);
    std::fill_n(s.rstd, channels, 1.0f);
    std::fill_n(s.scale, channels, 1.0f);
    std::copy_n(parameter(kBias), channels, s.shift);
    return;
  }

  // Mean and 1 / deviation: of the images or the micro-batch, or the running ones.
  if (shape_.norm == NormKind::kGroup) {
    group_statistics(s, w);
  } else if (context.pass.training) {
    batch_statistics(s, w);
  } else {
    const float* variance = parameter(kRunningVariance);
    std::copy_n(parameter(kRunningMean), channels, s.mean);
    for (int64_t c = 0; c < channels; ++c) s.rstd[c] = 1 / std::sqrt(variance[c] + kCnnNormEps);
  }

  // The norm becomes one multiplication and one addition per value: y scale + shift.
  const float *gain = parameter(kScale), *shift = parameter(kShift);
  for (int64_t r = 0; r < rows(); ++r) {
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t i = r * channels + c;
      s.scale[i] = gain[c] * s.rstd[i];
      s.shift[i] = shift[c] - s.mean[i] * s.scale[i];
    }
  }
}

Affine CnnLayer::affine(const Saved& s, int64_t image) const {
  return {s.scale + row(image), s.shift + row(image)};
}

NormGradient CnnLayer::gradient(const Saved& s, const Work& w, int64_t image) const {
  const int64_t at = row(image);
  return {s.mean + at, w.a + at, w.b + at, w.c + at};
}

void CnnLayer::defer(Carver& memory, SideGradients& sides, Work& w) const {
  for (int i = kWeight + 1; i < shape_.layer_parameters(); ++i)
    sides.add({first_ + i, conv.out}, memory);
  for (float** array : {&w.a, &w.b, &w.c}) *array = memory.floats(rows() * conv.out);
}

void CnnLayer::backward(const Context& context, const SideGradients& sides, const Saved& s,
                        const Work& w, const float* sums, const float* centred_sums,
                        int64_t stride) const {
  const int64_t channels = conv.out, batch = shape_.batch;
  const auto gradient = [&](int i) { return sides(first_ + i); };

  // Sums over the micro-batch, channel by channel: d gives the shift's gradient, d n the scale's.
  float* shift_gradient = gradient(shape_.norm == NormKind::kNone ? kBias : kShift);
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0, centred = 0;
    for (int64_t b = 0; b < batch; ++b) {
      sum += sums[b * stride + c];
      centred += static_cast<double>(centred_sums[b * stride + c]) * s.rstd[row(b) + c];
    }
    shift_gradient[c] = static_cast<float>(sum);

    // Without a norm the gradient of y is d.
    if (shape_.norm == NormKind::kNone) {
      w.a[c] = 1;
      w.b[c] = w.c[c] = 0;
      continue;
    }
    gradient(kScale)[c] = static_cast<float>(centred);

    // Batch norm's factors follow from these sums. Buffers are proposed where a gradient would go.
    if (shape_.norm != NormKind::kBatch) continue;
    const double count = static_cast<double>(batch * pixels()), scale = s.scale[c];
    w.a[c] = s.scale[c];
    w.b[c] = static_cast<float>(-scale * s.rstd[c] * centred / count);
    w.c[c] = static_cast<float>(-scale * sum / count);
    const auto propose = [&](int i, float seen) {
      const double old = floats(context.parameters[first_ + i])[c];
      gradient(i)[c] =
          static_cast<float>((1 - kCnnMomentum) * old + kCnnMomentum * static_cast<double>(seen));
    };
    propose(kRunningMean, s.mean[c]);
    propose(kRunningVariance, s.variance[c]);
  }

  // Group norm's factors are per image: sums over the channels of each group, weighted by the gain.
  // centred_sums lack one rstd, hence the third power.
  if (shape_.norm != NormKind::kGroup) return;
  const float* gain = floats(context.parameters[first_ + kScale]);
  const int64_t each = channels / shape_.groups(channels);
  const double count = static_cast<double>(each * pixels());
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t from = 0; from < channels; from += each) {
      double sum = 0, centred = 0;
      for (int64_t c = from; c < from + each; ++c) {
        sum += static_cast<double>(gain[c]) * sums[b * stride + c];
        centred += static_cast<double>(gain[c]) * centred_sums[b * stride + c];
      }
      for (int64_t c = from; c < from + each; ++c) {
        const int64_t i = b * channels + c;
        const double rstd = s.rstd[i];
        w.a[i] = s.scale[i];
        w.b[i] = static_cast<float>(-rstd * rstd * rstd * centred / count);
        w.c[i] = static_cast<float>(-rstd * sum / count);
      }
    }
  }
}

}  // namespace tutti
