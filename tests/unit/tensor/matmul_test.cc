// The three products against ATen's mm: the same library underneath, so the same bits.
#include "tensor/matmul.h"

#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>

#include "kernel_case.h"

namespace tutti::test {
namespace {

Floats values(const at::Tensor& t) {
  const at::Tensor c = t.contiguous();
  return {c.const_data_ptr<float>(), c.const_data_ptr<float>() + c.numel()};
}
at::Tensor view(const Floats& x, int64_t rows, int64_t cols) {
  return at::from_blob(const_cast<float*>(x.data()), {rows, cols}, at::kFloat);
}

TEST(Matmul, EachProductHasTheBitsOfAtensMm) {
  at::set_num_threads(1);
  const int64_t m = 48, n = 35, k = 61;
  Floats c(m * n, NAN);
  const Floats a = normals(m * k, 1), b = normals(k * n, 2);
  matmul_nn(a.data(), b.data(), c.data(), m, n, k);
  EXPECT_TRUE(same_bits(c, values(at::mm(view(a, m, k), view(b, k, n)))));
  matmul_nt(a.data(), b.data(), c.data(), m, n, k);
  EXPECT_TRUE(same_bits(c, values(at::mm(view(a, m, k), view(b, n, k).t()))));
  matmul_tn(a.data(), b.data(), c.data(), m, n, k);
  EXPECT_TRUE(same_bits(c, values(at::mm(view(a, k, m).t(), view(b, k, n)))));
}

}  // namespace
}  // namespace tutti::test
