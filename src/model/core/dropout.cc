// Gets masks from the fused kernels instead of drawing them again here: the backward kernel,
// applied to ones, returns the mask itself.
#include "model/core/dropout.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>

#include "base/error.h"
#include "base/processor.h"
#include "device/library.h"

namespace tutti {

namespace {

const Kernels& kernels_of(const at::Tensor& like) {
  if (!like.is_cpu()) return *device_library().float32;
  // masks are the same for both
  return kernels(fastest_path());
}

}  // namespace

at::Tensor keyed_mask(const Dropout& dropout, const at::Tensor& like) {
  TUTTI_CHECK(dropout.keys == nullptr || !like.is_cpu(),
              "keys in a device's memory for a mask on the CPU");
  const int64_t cols = like.size(-1), rows = cols == 0 ? 0 : like.numel() / cols;
  const at::Tensor ones = at::ones(like.sizes(), like.options().dtype(at::kFloat)),
                   mask = at::empty_like(ones);
  const at::Tensor sums = at::empty({cols}, ones.options());
  kernels_of(like).dropout_backward(ones.const_data_ptr<float>(), mask.mutable_data_ptr<float>(),
                                    sums.mutable_data_ptr<float>(), rows, cols, &dropout);
  return mask;
}

}  // namespace tutti
