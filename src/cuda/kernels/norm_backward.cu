// Layer norm and RMS norm, backward. With n = (x - mean) rstd and g = dy gamma:
//   dx     = residual + rstd (g - mean(g) - n mean(g n))
//   dgamma = sum over rows of dy n
//   dbeta  = sum over rows of dy
// For RMS norm the mean is 0, and mean(g) is not subtracted. A block takes one chunk of rows; its
// threads keep the sums of their columns in registers meanwhile. Rows that are too long for that
// have their column sums from a pass of their own, which comes first, since dx may be dy.
#include "cuda/kernels/columns.cuh"
#include "cuda/kernels/norm.cuh"

namespace tutti::rows {

namespace {

template <class A>
struct Backward {
  const A *dy, *x;
  const float *mean, *rstd, *gamma;
  /// may be null or dx; dx may be dy: a thread reads a row's elements before it writes them
  const A* residual;
  A* dx;
  int64_t rows, cols;
};

/// dx of a chunk of rows, and the chunk's part of dgamma and dbeta as a row of partials.
template <class A, bool whole, bool centred, class L>
__global__ void __launch_bounds__(L::kBlock)
    norm_backward(const Backward<A> args, float* partials, int64_t width, int64_t chunk_rows) {
  constexpr int n = kVector<A>, kHeld = L::kPacks > 0 ? L::kPacks : 1, kSums = centred ? 2 : 1;
  const int thread = threadIdx.x % L::kThreads, slot = threadIdx.x / L::kThreads;
  const int64_t cols = args.cols;
  const int64_t begin = int64_t{blockIdx.x} * chunk_rows, end = min(begin + chunk_rows, args.rows);
  const float share = 1 / static_cast<float>(cols);
  float sums[kSums][kHeld][n] = {};  // dgamma, dbeta

  for (int64_t row = begin + slot; row < end; row += L::kRows) {
    Pack<A, n> dy[kHeld], x[kHeld], residual[kHeld];
    const auto load = [&](int p, int64_t column) {
      load_pack<whole>(dy[p], args.dy + row * cols, column, cols);
      load_pack<whole>(x[p], args.x + row * cols, column, cols);
    };
    if constexpr (L::kPacks > 0) {
      for_packs<A, L>(thread, cols, [&](int p, int64_t column) {
        load(p, column);
        if (args.residual != nullptr)
          load_pack<whole>(residual[p], args.residual + row * cols, column, cols);
      });
    }
    const float mean = centred ? args.mean[row] : 0, rstd = args.rstd[row];

    float2 means = {0, 0};
    for_packs<A, L>(thread, cols, [&](int p, int64_t column) {
      if constexpr (L::kPacks == 0) load(p, column);
      float d[n], v[n], gamma[n];
      dy[p].get(d);
      x[p].get(v);
      // Past the row's end d and gamma are zero.
      load_values<whole>(gamma, args.gamma, column, cols);

#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float normal = (v[i] - mean) * rstd, g = d[i] * gamma[i];
        means.x += g;
        means.y = fmaf(g, normal, means.y);
        if constexpr (L::kPacks > 0) {
          sums[0][p][i] = fmaf(d[i], normal, sums[0][p][i]);
          if constexpr (centred) sums[1][p][i] += d[i];
        }
      }
    });
    means = row_sums<L::kThreads>(means);
    const float mean_g = centred ? means.x * share : 0, mean_gn = means.y * share;

    for_packs<A, L>(thread, cols, [&](int p, int64_t column) {
      if constexpr (L::kPacks == 0) {
        load(p, column);
        if (args.residual != nullptr)
          load_pack<whole>(residual[p], args.residual + row * cols, column, cols);
      }
      float d[n], v[n], gamma[n], rest[n] = {};
      dy[p].get(d);
      x[p].get(v);
      if (args.residual != nullptr) residual[p].get(rest);
      load_values<whole>(gamma, args.gamma, column, cols);
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float normal = (v[i] - mean) * rstd;
        d[i] = fmaf(fmaf(-normal, mean_gn, d[i] * gamma[i] - mean_g), rstd, rest[i]);
      }
      store_values<whole>(d, args.dx + row * cols, column, cols);
    });
  }

  if constexpr (L::kPacks > 0) {
    // The block's sums become a row of the partials. With one row at a time each thread has columns
    // of its own; else the four warps have the same columns, and their sums are added in order.
    constexpr int kStride = kWarp * n;  // columns of a warp's packs of one index
    __shared__ float of_slots[L::kRows > 1 ? L::kRows : 1][L::kRows > 1 ? kHeld * kStride : 1];

#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      float* out = partials + blockIdx.x * width + s * cols;
      if constexpr (L::kRows == 1) {
        for_packs<A, L>(thread, cols, [&](int p, int64_t column) {
#pragma unroll
          for (int i = 0; i < n; ++i) {
            if (column + i < cols) out[column + i] = sums[s][p][i];
          }
        });
      } else {
        // For each element the warp's threads are adjacent, so there are no bank conflicts.
#pragma unroll
        for (int p = 0; p < kHeld; ++p) {
#pragma unroll
          for (int i = 0; i < n; ++i)
            of_slots[slot][p * kStride + i * kWarp + thread] = sums[s][p][i];
        }
        __syncthreads();
        for (int k = threadIdx.x; k < kHeld * kStride; k += L::kBlock) {
          const int64_t column = k / kStride * kStride + k % kWarp * n + k % kStride / kWarp;
          if (column >= cols) continue;
          float sum = of_slots[0][k];
#pragma unroll
          for (int other = 1; other < L::kRows; ++other) sum += of_slots[other][k];
          out[column] = sum;
        }
        __syncthreads();
      }
    }
  }
}

/// The column sums alone, for rows that are too long for registers.
template <class A, int n, bool centred>
struct NormSums {
  static constexpr int kLanes = n, kSums = centred ? 2 : 1;
  struct Own {};
  struct Input {
    Pack<A, n> dy, x;
    float mean, rstd;
  };
  Backward<A> args;

  __device__ Own own(int64_t) const { return {}; }
  __device__ Input load(int64_t row, int64_t column, const Own&) const {
    Input input;
    input.dy.load(args.dy + row * args.cols + column);
    input.x.load(args.x + row * args.cols + column);
    input.mean = centred ? args.mean[row] : 0;
    input.rstd = args.rstd[row];
    return input;
  }

  __device__ void run(const Input& input, const Own&, int64_t, int64_t, const float (&)[n],
                      float (&sums)[kSums][n]) const {
    float d[n], v[n];
    input.dy.get(d);
    input.x.get(v);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      sums[0][i] = fmaf(d[i], (v[i] - input.mean) * input.rstd, sums[0][i]);
      if constexpr (centred) sums[1][i] += d[i];
    }
  }

  __device__ int64_t place(int sum, int64_t column) const { return sum * args.cols + column; }
};

/// Rows are cut into as many chunks as keep any GPU busy with blocks of so many registers. The
/// numbers are fixed, as they decide the order of sums.
template <class L>
Chunks norm_chunks(int64_t rows) {
  constexpr int64_t kBlocks = L::kThreads == kWarp ? 384 : L::kThreads == 128 ? 640 : 256;
  const int64_t each = std::max(pieces_of(rows, kBlocks), int64_t{2 * L::kRows});
  return {pieces_of(rows, each), each};
}

template <class A, bool whole, bool centred, class L>
void launch_as(Queue& queue, const char* name, const Backward<A>& args, float* dgamma,
               float* dbeta) {
  constexpr int kLanes = whole ? kVector<A> : 1;
  const int64_t rows = args.rows, cols = args.cols, width = (centred ? 2 : 1) * cols;
  const Chunks chunks = L::kPacks > 0 ? norm_chunks<L>(rows) : chunks_of<A>(rows, cols);
  float* partials = take_floats(queue, chunks.count * width);

  // Before dx is written, which may be dy.
  if constexpr (L::kPacks == 0) {
    const NormSums<A, kLanes, centred> sums{args};
    launch_columns(queue, name, sums, NoMask{}, partials, width, rows, cols, chunks);
  }

  if (rows > 0) {
    norm_backward<A, whole, centred, L>
        <<<static_cast<unsigned>(chunks.count), L::kBlock, 0, queue.stream>>>(args, partials, width,
                                                                              chunks.rows);
    check_launch(name);
  }

  add_partials(queue, partials, chunks.count, dgamma, cols, dbeta, width - cols);
}

template <bool centred, class A>
void launch(Queue& queue, const char* name, const Backward<A>& args, float* dgamma, float* dbeta) {
  if (args.cols == 0) return;
  if (whole_packs<A>(args.cols, {args.dy, args.x, args.gamma, args.residual, args.dx})) {
    with_layout<A, true>(args.cols, [&]<class L>(L) {
      launch_as<A, true, centred, L>(queue, name, args, dgamma, dbeta);
    });
  } else {
    with_layout<A, false>(args.cols, [&]<class L>(L) {
      launch_as<A, false, centred, L>(queue, name, args, dgamma, dbeta);
    });
  }
}

}  // namespace

template <class A>
void layer_norm_backward(Queue& queue, const A* dy, const A* x, const float* mean,
                         const float* rstd, const float* gamma, const A* residual, A* dx,
                         float* dgamma, float* dbeta, int64_t rows, int64_t cols) {
  launch<true>(queue, "layer_norm_backward",
               Backward<A>{dy, x, mean, rstd, gamma, residual, dx, rows, cols}, dgamma, dbeta);
}

template <class A>
void rms_norm_backward(Queue& queue, const A* dy, const A* x, const float* rstd, const float* gamma,
                       const A* residual, A* dx, float* dgamma, int64_t rows, int64_t cols) {
  launch<false>(queue, "rms_norm_backward",
                Backward<A>{dy, x, nullptr, rstd, gamma, residual, dx, rows, cols}, dgamma,
                nullptr);
}

#define TUTTI_INSTANCE(A)                                                                          \
  template void layer_norm_backward(Queue&, const A*, const A*, const float*, const float*,        \
                                    const float*, const A*, A*, float*, float*, int64_t, int64_t); \
  template void rms_norm_backward(Queue&, const A*, const A*, const float*, const float*,          \
                                  const A*, A*, float*, int64_t, int64_t);
TUTTI_FOR_EACH_TYPE(TUTTI_INSTANCE)

}  // namespace tutti::rows
