// Layer norm and RMS norm, forward. A row is read once; its mean and then its squared distances are
// summed from registers.
#include "cuda/kernels/norm.cuh"

namespace tutti::rows {

namespace {

template <class A>
struct Norm {
  const A* x;
  const float *gamma, *beta;  ///< beta may be null
  A* y;
  float *mean, *rstd;
  int64_t rows, cols;
  float eps;
};

/// `centred`: layer norm; else RMS norm, whose mean is 0. A row belongs to one warp or one
/// block (norm.cuh).
template <class A, bool whole, bool centred, class L>
__global__ void __launch_bounds__(L::kBlock) norm(const Norm<A> args) {
  constexpr int n = kVector<A>;
  const int thread = threadIdx.x % L::kThreads;
  const int64_t row = int64_t{blockIdx.x} * L::kRows + threadIdx.x / L::kThreads, cols = args.cols;
  if (row >= args.rows) return;  // a whole warp or the whole block leaves
  const A* x = args.x + row * cols;

  // The row is kept in registers if the layout has room for it; else `values` reads it again.
  Pack<A, n> packs[L::kPacks > 0 ? L::kPacks : 1];
  if constexpr (L::kPacks > 0) {
    for_packs<A, L>(thread, cols,
                    [&](int p, int64_t column) { load_pack<whole>(packs[p], x, column, cols); });
  }
  const auto values = [&](int p, int64_t column, float(&to)[n]) {
    if constexpr (L::kPacks == 0) load_pack<whole>(packs[p], x, column, cols);
    packs[p].get(to);
  };

  float mean = 0;
  if constexpr (centred) {
    float sum = 0;
    for_packs<A, L>(thread, cols, [&](int p, int64_t column) {
      float v[n];
      values(p, column, v);
#pragma unroll
      for (int i = 0; i < n; ++i) sum += v[i];  // past the row's end: zeros
    });
    mean = row_sums<L::kThreads>({sum, 0}).x / static_cast<float>(cols);
  }

  // Squares of distances to the mean, not of the elements: mean(x^2) - mean^2 would cancel.
  float squares = 0;
  for_packs<A, L>(thread, cols, [&](int p, int64_t column) {
    float v[n];
    values(p, column, v);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float d = v[i] - mean;
      if (whole || column + i < cols) squares = fmaf(d, d, squares);
    }
  });
  squares = row_sums<L::kThreads>({squares, 0}).x;
  const float rstd = 1 / sqrtf(squares / static_cast<float>(cols) + args.eps);
  if (thread == 0) {
    if constexpr (centred) args.mean[row] = mean;
    args.rstd[row] = rstd;
  }

  // The row is read again only if it was too long for the registers.
  for_packs<A, L>(thread, cols, [&](int p, int64_t column) {
    float v[n], gamma[n], beta[n] = {};
    values(p, column, v);
    load_values<whole>(gamma, args.gamma, column, cols);
    if (args.beta != nullptr) load_values<whole>(beta, args.beta, column, cols);
#pragma unroll
    for (int i = 0; i < n; ++i) v[i] = fmaf((v[i] - mean) * rstd, gamma[i], beta[i]);
    store_values<whole>(v, args.y + row * cols, column, cols);
  });
}

template <class A, bool whole, bool centred, class L>
void launch_as(Queue& queue, const Norm<A>& args) {
  const auto blocks = static_cast<unsigned>(pieces_of(args.rows, L::kRows));
  norm<A, whole, centred, L><<<blocks, L::kBlock, 0, queue.stream>>>(args);
}

template <bool centred, class A>
void launch(Queue& queue, const char* name, const Norm<A>& args) {
  if (args.rows == 0 || args.cols == 0) return;
  if (whole_packs<A>(args.cols, {args.x, args.gamma, args.beta, args.y})) {
    with_layout<A, true>(args.cols,
                         [&]<class L>(L) { launch_as<A, true, centred, L>(queue, args); });
  } else {
    with_layout<A, false>(args.cols,
                          [&]<class L>(L) { launch_as<A, false, centred, L>(queue, args); });
  }
  check_launch(name);
}

}  // namespace

template <class A>
void layer_norm(Queue& queue, const A* x, const float* gamma, const float* beta, A* y, float* mean,
                float* rstd, int64_t rows, int64_t cols, float eps) {
  launch<true>(queue, "layer_norm", Norm<A>{x, gamma, beta, y, mean, rstd, rows, cols, eps});
}

template <class A>
void rms_norm(Queue& queue, const A* x, const float* gamma, A* y, float* rstd, int64_t rows,
              int64_t cols, float eps) {
  launch<false>(queue, "rms_norm", Norm<A>{x, gamma, nullptr, y, nullptr, rstd, rows, cols, eps});
}

#define TUTTI_INSTANCE(A)                                                                    \
  template void layer_norm(Queue&, const A*, const float*, const float*, A*, float*, float*, \
                           int64_t, int64_t, float);                                         \
  template void rms_norm(Queue&, const A*, const float*, A*, float*, int64_t, int64_t, float);
TUTTI_FOR_EACH_TYPE(TUTTI_INSTANCE)

}  // namespace tutti::rows
