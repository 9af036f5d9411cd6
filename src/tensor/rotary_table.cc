// The cosines and sines of rotary positions, computed once per model.
#include <cmath>

#include "base/error.h"
#include "base/portable_math.h"
#include "tensor/kernels.h"

namespace tutti {

std::vector<float> rotary_table(int64_t length, int64_t dim, double base) {
  TUTTI_CHECK(dim % 2 == 0, "rotary positions turn pairs, but a head has {} elements", dim);
  std::vector<float> table(static_cast<size_t>(length * dim));

  // In float64: an angle of t radians loses up to log2(t) of float32's 24 bits before the cosine.
  for (int64_t i = 0; i < dim / 2; ++i) {
    const double frequency =
        portable::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
    for (int64_t t = 0; t < length; ++t) {
      const double angle = static_cast<double>(t) * frequency;
      table[static_cast<size_t>(t * dim + i)] = static_cast<float>(portable::cos(angle));
      table[static_cast<size_t>(t * dim + dim / 2 + i)] = static_cast<float>(portable::sin(angle));
    }
  }
  return table;
}

}  // namespace tutti
