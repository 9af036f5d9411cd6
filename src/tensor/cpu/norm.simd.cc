// Layer norm and RMS norm. A row is read once per sum and once for the result; it stays in the
// first-level cache meanwhile.
#include <cmath>
#include <cstring>

#include "base/simd/vec.h"
#include "tensor/cpu/kernel_tables.h"

namespace tutti::TUTTI_ISA {

namespace {

/// The sum over a row of term(c, lanes), in four interleaved partial sums: in one, every addition
/// would wait for the one before.
template <typename Term>
float row_sum(int64_t cols, Term term) {
  Lanes s[4] = {lanes_of(zero()), lanes_of(zero()), lanes_of(zero()), lanes_of(zero())};
  int64_t c = 0;
  for (; c + 4 * kLanes <= cols; c += 4 * kLanes) {
#pragma clang loop unroll(full)
    for (int i = 0; i < 4 * kParts; ++i) {
      F& sum = s[i / kParts].part[i % kParts];
      sum = sum + term(c + i * kWidth, Whole{});
    }
  }
  for_lanes(cols - c, [&](int64_t rest, auto lanes, int part) {
    F& sum = s[0].part[part];
    sum = sum + lanes.keep(term(c + rest, lanes));
  });
  return sum((s[0] + s[1]) + (s[2] + s[3]));
}

void layer_norm(const float* x, const float* gamma, const float* beta, float* y, float* mean,
                float* rstd, int64_t rows, int64_t cols, float eps) {
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    const float m = row_sum(cols, [&](int64_t c, auto lanes) { return lanes.load(x + c); }) /
                    static_cast<float>(cols);

    // In a second pass: mean(x^2) - mean^2 would cancel where the mean is large.
    const F vm = set(m);
    const float squares = row_sum(cols, [&](int64_t c, auto lanes) {
      const F d = lanes.load(x + c) - vm;
      return d * d;
    });

    const float s = 1 / std::sqrt(squares / static_cast<float>(cols) + eps);
    mean[r] = m;
    rstd[r] = s;

    const F vs = set(s);
    for_vectors(cols, [&](int64_t c, auto lanes) {
      const F normal = (lanes.load(x + c) - vm) * vs;
      lanes.store(y + c, fma(normal, lanes.load(gamma + c), load_or_zero(beta, c, lanes)));
    });
  }
}

// With n = (x - mean) rstd and g = dy gamma:
//   dx     = rstd (g - mean(g) - n mean(g n))
//   dgamma = sum over rows of dy n
//   dbeta  = sum over rows of dy
template <bool has_residual>
void backward(const float* dy, const float* x, const float* mean, const float* rstd,
              const float* gamma, const float* residual, float* dx, float* dgamma, float* dbeta,
              int64_t rows, int64_t cols) {
  clear(dgamma, cols);
  clear(dbeta, cols);
  for (int64_t r = 0; r < rows; ++r, dy += cols, x += cols, dx += cols) {
    const F vm = set(mean[r]), vs = set(rstd[r]);

    // The first pass makes the two row sums and this row's share of dgamma and dbeta.
    Lanes sum_g = lanes_of(zero()), sum_gn = sum_g;
    for_lanes(cols, [&](int64_t c, auto lanes, int part) {
      const F d = lanes.load(dy + c);
      const F n = lanes.keep((lanes.load(x + c) - vm) * vs);
      const F g = d * lanes.load(gamma + c);  // lanes past the end are zero, as d and gamma are
      sum_g.part[part] = sum_g.part[part] + g;
      sum_gn.part[part] = fma(g, n, sum_gn.part[part]);
      lanes.store(dgamma + c, fma(d, n, lanes.load(dgamma + c)));
      add_to(dbeta, c, d, lanes);
    });

    // The second pass makes dx. n and g are computed again, from a row that is in the cache; dx may
    // be dy or residual, since each place is read before it is written.
    const float share = 1 / static_cast<float>(cols);
    const F mean_g = set(sum(sum_g) * share), mean_gn = set(sum(sum_gn) * share);
    for_vectors(cols, [&](int64_t c, auto lanes) {
      const F n = (lanes.load(x + c) - vm) * vs;
      const F g = lanes.load(dy + c) * lanes.load(gamma + c);
      const F inner = fnma(n, mean_gn, g - mean_g);
      if constexpr (has_residual) {
        lanes.store(dx + c, fma(inner, vs, lanes.load(residual + c)));
      } else {
        lanes.store(dx + c, inner * vs);
      }
    });
    if constexpr (has_residual) residual += cols;
  }
}

void layer_norm_backward(const float* dy, const float* x, const float* mean, const float* rstd,
                         const float* gamma, const float* residual, float* dx, float* dgamma,
                         float* dbeta, int64_t rows, int64_t cols) {
  if (residual != nullptr) {
    backward<true>(dy, x, mean, rstd, gamma, residual, dx, dgamma, dbeta, rows, cols);
  } else {
    backward<false>(dy, x, mean, rstd, gamma, residual, dx, dgamma, dbeta, rows, cols);
  }
}

void rms_norm(const float* x, const float* gamma, float* y, float* rstd, int64_t rows, int64_t cols,
              float eps) {
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    const float squares = row_sum(cols, [&](int64_t c, auto lanes) {
      const F v = lanes.load(x + c);
      return v * v;
    });

    rstd[r] = 1 / std::sqrt(squares / static_cast<float>(cols) + eps);
    const F vs = set(rstd[r]);
    for_vectors(cols, [&](int64_t c, auto lanes) {
      lanes.store(y + c, lanes.load(x + c) * vs * lanes.load(gamma + c));
    });
  }
}

// With n = x rstd and g = dy gamma:
//   dx     = rstd (g - n mean(g n))
//   dgamma = sum over rows of dy n
void rms_norm_backward(const float* dy, const float* x, const float* rstd, const float* gamma,
                       const float* residual, float* dx, float* dgamma, int64_t rows,
                       int64_t cols) {
  clear(dgamma, cols);
  for (int64_t r = 0; r < rows; ++r, dy += cols, x += cols, dx += cols) {
    const F vs = set(rstd[r]);

    Lanes sum_gn = lanes_of(zero());
    for_lanes(cols, [&](int64_t c, auto lanes, int part) {
      const F dn = lanes.keep(lanes.load(dy + c) * (lanes.load(x + c) * vs));
      sum_gn.part[part] = fma(dn, lanes.load(gamma + c), sum_gn.part[part]);
      lanes.store(dgamma + c, lanes.load(dgamma + c) + dn);
    });

    const F mean_gn = set(sum(sum_gn) * (1 / static_cast<float>(cols)));
    for_vectors(cols, [&](int64_t c, auto lanes) {
      const F n = lanes.load(x + c) * vs;
      const F inner = fnma(n, mean_gn, lanes.load(dy + c) * lanes.load(gamma + c));
      lanes.store(dx + c, fma(inner, vs, load_or_zero(residual, c, lanes)));
    });
    if (residual != nullptr) residual += cols;
  }
}

}  // namespace

void fill_norm(Kernels& table) {
  table.layer_norm = layer_norm;
  table.layer_norm_backward = layer_norm_backward;
  table.rms_norm = rms_norm;
  table.rms_norm_backward = rms_norm_backward;
}

}  // namespace tutti::TUTTI_ISA
