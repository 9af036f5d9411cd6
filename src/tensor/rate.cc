// Measures the peak rate of a core's matmuls.
#include "tensor/rate.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace tutti {

double matmul_gflops(const Matmul& matmul, Clock& clock) {
  // Three panels of the own kernels (384) along k and n, so that no cut leaves a thin rest.
  constexpr int64_t kSide = 1152;
  std::vector<float> a(kSide * kSide, 1), b(kSide * kSide, 1), c(kSide * kSide);
  std::vector<float> work(matmul.work(kSide, kSide, kSide));

  // The best time counts: the first call meets cold caches, and any call may be interrupted.
  double best = 1e9;
  for (int i = 0; i < 8; ++i) {
    const Time begin = clock.now();
    matmul.nn(a.data(), b.data(), c.data(), kSide, kSide, kSide, work.data());
    best = std::min(best, std::chrono::duration<double>(clock.now() - begin).count());
  }
  return 2.0 * kSide * kSide * kSide / best / 1e9;
}

}  // namespace tutti
