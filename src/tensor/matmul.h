// Row-major float32 matmuls on MKL's sgemm, which libtorch_cpu exports. The result is written whole (beta = 0). With
// one thread the same shape gives the same bits; rows do not depend on how many are computed together from 16 rows on.
#pragma once

#include <cstdint>

namespace tutti {

/// c [m, n] = a [m, k] * b [n, k]^T: a linear layer's forward, with its weight as b.
void matmul_nt(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k);
/// c [m, n] = a [m, k] * b [k, n]: the gradient of its input.
void matmul_nn(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k);
/// c [m, n] = a [k, m]^T * b [k, n]: the gradient of its weight.
void matmul_tn(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k);

}  // namespace tutti
