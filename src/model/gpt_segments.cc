// What the GPT's hand-written segments share.
#include "model/gpt_segments.h"

#include "base/error.h"

namespace tutti {

float* Carver::floats(int64_t count) {
  const int64_t at = used_;
  used_ += (count * static_cast<int64_t>(sizeof(float)) + 63) / 64 * 64;
  if (memory_ == nullptr) return nullptr;
  TUTTI_CHECK(used_ <= size_, "a segment uses {} bytes of the {} it asked for", used_, size_);
  return reinterpret_cast<float*>(memory_ + at);
}

GptNorm::Saved GptNorm::saved(Carver& memory) const {
  Saved s{};
  s.normal = memory.floats(shape_.rows() * shape_.width);
  s.mean = memory.floats(shape_.rms ? 0 : shape_.rows());
  s.rstd = memory.floats(shape_.rows());
  return s;
}

void GptNorm::forward(const Context& context, const float* x, const Saved& saved) const {
  const float *weight = floats(context.parameters, place_.weight), *bias = floats(context.parameters, place_.bias);
  if (shape_.rms) {
    kernels_.rms_norm(x, weight, saved.normal, saved.rstd, shape_.rows(), shape_.width, kGptNormEps);
  } else {
    kernels_.layer_norm(x, weight, bias, saved.normal, saved.mean, saved.rstd, shape_.rows(), shape_.width,
                        kGptNormEps);
  }
}

void GptNorm::backward(const Context& context, const float* dy, const float* x, const Saved& saved,
                       const float* residual, float* dx) const {
  const float* weight = floats(context.parameters, place_.weight);
  float *dweight = floats(context.gradients, place_.weight), *dbias = floats(context.gradients, place_.bias);
  if (shape_.rms) {
    kernels_.rms_norm_backward(dy, x, saved.rstd, weight, residual, dx, dweight, shape_.rows(), shape_.width);
  } else {
    kernels_.layer_norm_backward(dy, x, saved.mean, saved.rstd, weight, residual, dx, dweight, dbias, shape_.rows(),
                                 shape_.width);
  }
}

}  // namespace tutti
