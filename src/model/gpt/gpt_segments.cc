// What the GPT's hand-written segments share: the norm.
#include "model/gpt/gpt_segments.h"

#include "model/core/deferred.h"

namespace tutti {

template <class A>
typename GptNorm<A>::Saved GptNorm<A>::saved(Carver& memory) const {
  Saved s{};
  s.normal = memory.take<A>(shape_.rows() * shape_.width);

  // RMS norm subtracts no mean. The normal output is kept because the next layer's weight gradient
  // reads it.
  s.mean = memory.floats(shape_.rms ? 0 : shape_.rows());
  s.rstd = memory.floats(shape_.rows());
  return s;
}

template <class A>
void GptNorm<A>::forward(const Context& context, const A* x, const Saved& saved) const {
  const float *weight = floats(context.parameters, place_.weight),
              *bias = floats(context.parameters, place_.bias);
  if (shape_.rms) {
    kernels_.rms_norm(x, weight, saved.normal, saved.rstd, shape_.rows(), shape_.width,
                      kGptNormEps);
  } else {
    kernels_.layer_norm(x, weight, bias, saved.normal, saved.mean, saved.rstd, shape_.rows(),
                        shape_.width, kGptNormEps);
  }
}

template <class A>
void GptNorm<A>::backward(const Context& context, const SideGradients& sides, const A* dy,
                          const A* x, const Saved& saved, const A* residual, A* dx) const {
  const float* weight = floats(context.parameters, place_.weight);
  float *dweight = sides(place_.weight), *dbias = sides(place_.bias);
  if (shape_.rms) {
    kernels_.rms_norm_backward(dy, x, saved.rstd, weight, residual, dx, dweight, shape_.rows(),
                               shape_.width);
  } else {
    kernels_.layer_norm_backward(dy, x, saved.mean, saved.rstd, weight, residual, dx, dweight,
                                 dbias, shape_.rows(), shape_.width);
  }
}

#define TUTTI_MAKE(A) template class GptNorm<A>;
TUTTI_FOR_ACTIVATIONS(TUTTI_MAKE)
#undef TUTTI_MAKE

}  // namespace tutti
