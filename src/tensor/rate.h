// How fast this core's matmuls can be: the limit that a run's speed is compared with.
#pragma once

#include "base/wait.h"
#include "tensor/matmul.h"

namespace tutti {

/// GFLOP/s of one core on a matmul that neither caches nor shape slow down: the best of several,
/// which takes about 0.2 s.
double matmul_gflops(const Matmul& matmul, Clock& clock);

}  // namespace tutti
