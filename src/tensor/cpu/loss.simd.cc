// Softmax cross-entropy. Forward keeps the log-sum-exp of each row, from which backward has a
// probability with one exponential.
#include <cmath>
#include <limits>

#include "base/portable_math.h"
#include "base/simd/vec.h"
#include "tensor/cpu/kernel_tables.h"

namespace tutti::TUTTI_ISA {

namespace {

void cross_entropy(const float* logits, const int64_t* targets, float* lse, double* result,
                   int64_t rows, int64_t cols) {
  double total = 0;
  int64_t counted = 0;
  const F lowest = set(-std::numeric_limits<float>::infinity());
  for (int64_t r = 0; r < rows; ++r, logits += cols) {
    // The largest logit is subtracted, so that no exponential overflows.
    Lanes top = lanes_of(lowest);
    for_lanes(cols, [&](int64_t c, auto lanes, int part) {
      top.part[part] = max(top.part[part], lanes.keep(lanes.load(logits + c), lowest));
    });

    const float m = largest(top);
    const F vm = set(m);
    Lanes s = lanes_of(zero());
    for_lanes(cols, [&](int64_t c, auto lanes, int part) {
      s.part[part] = s.part[part] + lanes.keep(exp(lanes.load(logits + c) - vm));
    });

    // lse is kept for every row; the loss counts those with a target.
    const double row = static_cast<double>(m) + portable::log(static_cast<double>(sum(s)));
    lse[r] = static_cast<float>(row);
    if (targets[r] < 0) continue;
    total += row - static_cast<double>(logits[targets[r]]);
    ++counted;
  }
  result[0] = total;
  result[1] = static_cast<double>(counted);
}

/// The CPU's float32 needs no loss scale.
void cross_entropy_backward(const float* logits, const int64_t* targets, const float* lse,
                            const double*, float* dlogits, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, logits += cols, dlogits += cols) {
    if (targets[r] < 0) {
      for_vectors(cols, [&](int64_t c, auto lanes) { lanes.store(dlogits + c, zero()); });
      continue;
    }

    // The gradient is the probability, less one at the target.
    const F vl = set(lse[r]);
    for_vectors(cols, [&](int64_t c, auto lanes) {
      lanes.store(dlogits + c, exp(lanes.load(logits + c) - vl));
    });
    dlogits[targets[r]] -= 1;
  }
}

}  // namespace

void fill_loss(Kernels& table) {
  table.cross_entropy = cross_entropy;
  table.cross_entropy_backward = cross_entropy_backward;
}

}  // namespace tutti::TUTTI_ISA
