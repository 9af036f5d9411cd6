// Batch norm: the statistics are those of a column, over all rows. Sums over rows run in float32
// within a block of rows and in float64 over the blocks, in order.
#include "tensor/cpu/conv_sums.h"
#include "tensor/cpu/kernel_tables.h"

namespace tutti::TUTTI_ISA {

namespace {

constexpr int64_t kBlock = 32, kStrip = 64;

/// Calls done(column, sums) for every column with the sums over its rows of the n values that
/// term(row, column, lanes, out) writes to out.
template <int n, typename Term, typename Done>
inline __attribute__((always_inline)) void column_sums_of(int64_t rows, int64_t cols, Term&& term,
                                                          Done&& done) {
  alignas(64) float part[n * kStrip];
  double sums[n * kStrip];
  for (int64_t from = 0; from < cols; from += kStrip) {
    const int64_t width = cols - from < kStrip ? cols - from : kStrip;
    for (int64_t i = 0; i < n * width; ++i) sums[i] = 0;
    for (int64_t r = 0; r < rows; r += kBlock) {
      const int64_t block = rows - r < kBlock ? rows - r : kBlock;
      pixel_sums<n>(block, width, part, [&](int64_t p, int64_t c, auto lanes, F* out) {
        term(r + p, from + c, lanes, out);
      });
      for (int64_t i = 0; i < n * width; ++i) sums[i] += static_cast<double>(part[i]);
    }
    for (int64_t c = 0; c < width; ++c) {
      double of_column[n];
      for (int j = 0; j < n; ++j) of_column[j] = sums[j * width + c];
      done(from + c, of_column);
    }
  }
}

// In two passes: mean(x^2) - mean^2 would cancel where the mean is large.
void column_moments(const float* x, float* mean, float* variance, int64_t rows, int64_t cols) {
  const auto count = static_cast<double>(rows);
  column_sums_of<1>(
      rows, cols,
      [&](int64_t r, int64_t c, auto lanes, F* out) { out[0] = lanes.load(x + r * cols + c); },
      [&](int64_t c, const double* sums) { mean[c] = static_cast<float>(sums[0] / count); });
  column_sums_of<1>(
      rows, cols,
      [&](int64_t r, int64_t c, auto lanes, F* out) {
        const F d = lanes.load(x + r * cols + c) - lanes.load(mean + c);
        out[0] = d * d;
      },
      [&](int64_t c, const double* sums) { variance[c] = static_cast<float>(sums[0] / count); });
}

void batch_norm(const float* x, const float* mean, const float* rstd, const float* gamma,
                const float* beta, float* y, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    for_vectors(cols, [&](int64_t c, auto lanes) {
      const F normal = (lanes.load(x + c) - lanes.load(mean + c)) * lanes.load(rstd + c);
      lanes.store(y + c, fma(normal, lanes.load(gamma + c), lanes.load(beta + c)));
    });
  }
}

// With n = (x - mean) rstd:
//   dx     = gamma rstd (dy - mean(dy) - n mean(dy n)), means over the rows
//   dgamma = sum over rows of dy n
//   dbeta  = sum over rows of dy
void batch_norm_backward(const float* dy, const float* x, const float* mean, const float* rstd,
                         const float* gamma, float* dx, float* dgamma, float* dbeta, int64_t rows,
                         int64_t cols) {
  const auto normal = [&](int64_t r, int64_t c, auto lanes) {
    return (lanes.load(x + r * cols + c) - lanes.load(mean + c)) * lanes.load(rstd + c);
  };
  column_sums_of<2>(
      rows, cols,
      [&](int64_t r, int64_t c, auto lanes, F* out) {
        out[0] = lanes.load(dy + r * cols + c);
        out[1] = out[0] * normal(r, c, lanes);
      },
      [&](int64_t c, const double* sums) {
        dbeta[c] = static_cast<float>(sums[0]);
        dgamma[c] = static_cast<float>(sums[1]);
      });

  const F share = set(1 / static_cast<float>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    for_vectors(cols, [&](int64_t c, auto lanes) {
      const F centred = lanes.load(dy + r * cols + c) - lanes.load(dbeta + c) * share;
      const F inner = fnma(normal(r, c, lanes), lanes.load(dgamma + c) * share, centred);
      lanes.store(dx + r * cols + c, inner * (lanes.load(gamma + c) * lanes.load(rstd + c)));
    });
  }
}

}  // namespace

void fill_batch_norm(Kernels& table) {
  table.column_moments = column_moments;
  table.batch_norm = batch_norm;
  table.batch_norm_backward = batch_norm_backward;
}

}  // namespace tutti::TUTTI_ISA
