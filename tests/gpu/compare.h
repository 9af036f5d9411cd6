// What the tests of a GPU's compute kernels share: the types of activations, their random values
// and their rounding, and a comparison with ATen in float64 on the CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "gpu/gpu.h"

namespace tutti {

using Activations = testing::Types<float, c10::BFloat16, c10::Half>;
constexpr uint64_t kSeed = 20261115;

template <class A>
const KernelsFor<A>& table_of(const DeviceLibrary& library) {
  if constexpr (std::is_same_v<A, float>) {
    return *library.float32;
  } else if constexpr (std::is_same_v<A, c10::BFloat16>) {
    return *library.bfloat16;
  } else {
    return *library.float16;
  }
}

/// What rounding to A changes at most, as a fraction of the value.
template <class A>
constexpr double kRounding = std::is_same_v<A, float>           ? 0x1p-24
                             : std::is_same_v<A, c10::BFloat16> ? 0x1p-8
                                                                : 0x1p-11;

template <class A>
std::vector<A> normals(std::mt19937_64& random, int64_t n, float scale = 1) {
  const std::vector<float> values = random_floats(random, static_cast<size_t>(n), scale);
  return {values.begin(), values.end()};
}

/// A result's memory before it is written.
template <class A>
std::vector<A> unwritten(int64_t n) {
  return std::vector<A>(static_cast<size_t>(n), static_cast<A>(NAN));
}

template <class A>
at::Tensor exact(const std::vector<A>& x, at::IntArrayRef dims) {
  return at::from_blob(const_cast<A*>(x.data()), dims, c10::CppTypeToScalarType<A>::value)
      .to(at::kDouble);
}

/// The largest difference, as a fraction of the reference's largest value.
template <class A>
double distance(const std::vector<A>& got, const at::Tensor& reference) {
  const at::Tensor want = reference.detach().to(at::kDouble).contiguous();
  EXPECT_EQ(static_cast<int64_t>(got.size()), want.numel());
  const double* const w = want.const_data_ptr<double>();
  double worst = 0, top = 1e-30;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(static_cast<float>(got[i]))) return INFINITY;
    worst = std::max(worst, std::abs(static_cast<double>(static_cast<float>(got[i])) - w[i]));
    top = std::max(top, std::abs(w[i]));
  }
  return worst / top;
}

}  // namespace tutti
