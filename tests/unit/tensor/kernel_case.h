// What the kernel tests share: the instruction sets this machine can run, keyed random data, and a
// comparison with ATen.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/fp_mode.h"
#include "base/philox.h"
#include "base/processor.h"
#include "support/kernel_trials.h"
#include "tensor/kernels.h"

namespace tutti::test {

class EachIsa : public testing::TestWithParam<CodePath> {
 protected:
  void SetUp() override {
    if (!can_run(GetParam())) GTEST_SKIP() << "this processor cannot run it";
    set_fp_mode();
    table = &kernels(GetParam());
  }
  const Kernels* table = nullptr;
};

inline std::string isa_name(const testing::TestParamInfo<CodePath>& info) {
  return name_of(info.param);
}

/// Standard normals times scale, keyed by `stream`.
inline Floats normals(int64_t n, uint64_t stream, float scale = 1) {
  Floats x(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    x[i] = scale * static_cast<float>(
                       philox_normal({7, Purpose::kTest, stream, 0}, static_cast<uint64_t>(i)));
  return x;
}

/// A float64 leaf with these values, for a reference that is exact as far as float32 can see.
inline at::Tensor leaf(const Floats& x, at::IntArrayRef dims) {
  return at::from_blob(const_cast<float*>(x.data()), dims, at::kFloat)
      .to(at::kDouble)
      .requires_grad_(true);
}

/// The largest difference, as a fraction of the reference's largest value.
inline double distance(const Floats& got, const at::Tensor& reference) {
  const at::Tensor want = reference.detach().to(at::kDouble).contiguous();
  EXPECT_EQ(static_cast<int64_t>(got.size()), want.numel());
  const double* w = want.const_data_ptr<double>();
  double worst = 0, top = 1e-30;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return INFINITY;
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - w[i]));
    top = std::max(top, std::abs(w[i]));
  }
  return worst / top;
}

inline bool same_bits(const float* a, const float* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(float)) == 0;
}
inline bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), static_cast<int64_t>(a.size()));
}

}  // namespace tutti::test
