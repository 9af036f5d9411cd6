#include "tensor/log_softmax.h"

#include <limits>

#include "base/portable_math.h"
#include "base/simd/vec.h"

namespace tutti::TUTTI_ISA {

namespace {

void forward(const float* x, float temperature, float* log_p, int64_t rows, int64_t cols) {
  const F lowest = set(-std::numeric_limits<float>::infinity()), t = set(temperature);
  for (int64_t r = 0; r < rows; ++r, x += cols, log_p += cols) {
    // The result's memory holds x / temperature meanwhile. The largest is subtracted, so that no
    // exponential overflows.
    Lanes top = lanes_of(lowest);
    for_lanes(cols, [&](int64_t c, auto lanes, int part) {
      const F value = lanes.load(x + c) / t;
      lanes.store(log_p + c, value);
      top.part[part] = max(top.part[part], lanes.keep(value, lowest));
    });

    const F m = set(largest(top));
    Lanes s = lanes_of(zero());
    for_lanes(cols, [&](int64_t c, auto lanes, int part) {
      s.part[part] = s.part[part] + lanes.keep(exp(lanes.load(log_p + c) - m));
    });

    const F rest = set(static_cast<float>(portable::log(static_cast<double>(sum(s)))));
    for_vectors(cols, [&](int64_t c, auto lanes) {
      lanes.store(log_p + c, lanes.load(log_p + c) - m - rest);
    });
  }
}

void backward(const float* g, const float* log_p, float* dx, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, g += cols, log_p += cols, dx += cols) {
    Lanes s = lanes_of(zero());
    for_lanes(cols, [&](int64_t c, auto lanes, int part) {
      s.part[part] = s.part[part] + lanes.load(g + c);
    });

    const F all = set(sum(s));
    for_vectors(cols, [&](int64_t c, auto lanes) {
      lanes.store(dx + c, fnma(exp(lanes.load(log_p + c)), all, lanes.load(g + c)));
    });
  }
}

}  // namespace

const LogSoftmax log_softmax{forward, backward};

}  // namespace tutti::TUTTI_ISA
