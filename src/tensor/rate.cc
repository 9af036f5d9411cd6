// Measures the peak rate of a core's matmuls.
#include "tensor/rate.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace tutti {

namespace {

/// Seconds of the fastest of up to eight products, as many as fit into `most` seconds.
double fastest_product(const Matmul& matmul, int64_t side, double most, Clock& clock) {
  std::vector<float> a(side * side, 1), b(side * side, 1), c(side * side);
  std::vector<float> work(matmul.work(side, side, side));

  // The best time counts: the first call meets cold caches, and any call may be interrupted.
  double best = 1e9, all = 0;
  for (int i = 0; i < 8 && all < most; ++i) {
    const Time begin = clock.now();
    matmul.nn(a.data(), b.data(), c.data(), side, side, side, work.data());
    const double seconds = std::chrono::duration<double>(clock.now() - begin).count();
    best = std::min(best, seconds);
    all += seconds;
  }
  return best;
}

}  // namespace

double matmul_gflops(const Matmul& matmul, Clock& clock) {
  // Three panels of the own kernels (384) along k and n, so that no cut leaves a thin rest; one
  // panel on a processor that would take long.
  constexpr int64_t kPanel = 384;
  constexpr double kSeconds = 0.2;
  int64_t side = kPanel;
  double seconds = fastest_product(matmul, side, kSeconds / 27, clock);
  if (27 * seconds < kSeconds) {
    side = 3 * kPanel;
    seconds = fastest_product(matmul, side, kSeconds, clock);
  }
  return 2.0 * static_cast<double>(side * side * side) / seconds / 1e9;
}

}  // namespace tutti
