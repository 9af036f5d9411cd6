// How fast this core's matmuls can be: what a run's share of the limit is measured against.
#pragma once

#include "base/wait.h"
#include "tensor/matmul.h"

namespace tutti {

/// GFLOP/s of one core on a matmul that no cache or shape holds back; the best of several, about
/// 0.2 s.
double matmul_gflops(const Matmul& matmul, Clock& clock);

}  // namespace tutti
