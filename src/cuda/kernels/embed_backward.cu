// Gradients of the embeddings: for each token and each position the sum of its rows of dout, in the
// order of the rows.
//   1. Row numbers are sorted by token (radix sort: stable, integers only), and each token's run in
//      them is found.
//   2. A warp sums each token's run; tokens without rows get zeros; runs of kLong rows and more go
//      on a list.
//   3. A block sums each long run: warp w takes rows w, w + kRunWarps, ...; then the warps' sums
//      are added in order.
// The order of a token's sum depends on its own rows alone. The order of the list varies, and
// nothing depends on it.
#include <cub/device/device_radix_sort.cuh>

#include "cuda/kernels/columns.cuh"
#include "cuda/kernels/mask.cuh"

namespace tutti::rows {

namespace {

constexpr int kLong = 64, kRunWarps = 16, kWarps = 4;

template <class A>
struct Source {
  const A* dout;
  int64_t rows, cols;
};

/// Adds `count` rows of a warp's columns, in order: row_of(0), row_of(1), ... All lanes of the warp
/// call it, since masks are drawn together.
template <int n, class A, class Drawn, class RowOf>
__device__ void add_rows(const Source<A>& source, Drawn& drawn, bool masked, int64_t column,
                         int64_t count, RowOf&& row_of, float (&sums)[n]) {
  constexpr int kAtOnce = 4;
  const bool inside = column < source.cols;
  for (int64_t k = 0; k < count; k += kAtOnce) {
    // Several rows are on their way before the first is used; they are added in order all the same.
    Pack<A, n> packs[kAtOnce];
    int64_t rows[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      rows[i] = k + i < count ? row_of(k + i) : 0;
      if (inside && k + i < count) packs[i].load(source.dout + rows[i] * source.cols + column);
    }

#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (k + i >= count) break;
      float factors[n], values[n];
      drawn.draw(rows[i], factors);
      if (!inside) continue;
      packs[i].get(values);
#pragma unroll
      for (int j = 0; j < n; ++j) sums[j] += masked ? values[j] * factors[j] : values[j];
    }
  }
}

template <class Mask>
constexpr bool kIsMasked = !std::is_same_v<Mask, NoMask>;

/// The column of the thread's first element. Blocks along y share the columns.
template <int n>
__device__ int64_t own_column() {
  return (int64_t{blockIdx.y} * kWarp + threadIdx.x) * n;
}

/// One warp per position: its rows are `length` apart, so nothing has to be sorted.
template <int n, class A, class Mask>
__global__ void __launch_bounds__(kWarp* kWarps)
    sum_positions(const Source<A> source, const Mask mask, float* dposition, int64_t length) {
  const int64_t position = int64_t{blockIdx.x} * kWarps + threadIdx.y, column = own_column<n>();
  if (position >= length) return;
  typename Mask::template Drawn<n> drawn(mask, column);
  float sums[n] = {};
  const int64_t count = position < source.rows ? (source.rows - position - 1) / length + 1 : 0;
  add_rows(
      source, drawn, kIsMasked<Mask>, column, count,
      [&](int64_t k) { return position + k * length; }, sums);
  if (column < source.cols) store_as(dposition + position * source.cols + column, sums);
}

/// Runs of equal tokens: token t has the rows order[begin[t]] to order[end[t] - 1], and none where
/// both are 0.
struct Runs {
  const uint32_t* order;
  int32_t *begin, *end;               ///< [vocab]
  int32_t *long_count, *long_tokens;  ///< [1], [rows / kLong]
};

/// Pairs (token, row) to sort.
__global__ void fill_keys(const int64_t* tokens, uint32_t* keys, uint32_t* order, int64_t rows) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  keys[row] = static_cast<uint32_t>(tokens[row]);
  order[row] = static_cast<uint32_t>(row);
}

/// A run begins and ends where neighbouring keys differ. Keys of `vocab` and more belong to no
/// token of the table (of a slice) and have no run.
__global__ void find_runs(const uint32_t* keys, Runs runs, int64_t rows, int64_t vocab) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= rows || keys[i] >= vocab) return;
  if (i == 0 || keys[i - 1] != keys[i]) runs.begin[keys[i]] = static_cast<int32_t>(i);
  if (i == rows - 1 || keys[i + 1] != keys[i]) runs.end[keys[i]] = static_cast<int32_t>(i + 1);
}

/// Step 2. A short run is one warp's; a long one would keep it busy long after the others.
template <int n, class A, class Mask>
__global__ void __launch_bounds__(kWarp* kWarps)
    sum_tokens(const Source<A> source, const Mask mask, const Runs runs, float* dtoken,
               int64_t vocab) {
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.y, column = own_column<n>();
  if (token >= vocab) return;
  const int32_t begin = runs.begin[token], count = runs.end[token] - begin;
  if (count >= kLong) {
    if (blockIdx.y == 0 && threadIdx.x == 0) {
      runs.long_tokens[atomicAdd(runs.long_count, 1)] = static_cast<int32_t>(token);
    }
    return;
  }

  typename Mask::template Drawn<n> drawn(mask, column);
  float sums[n] = {};
  add_rows(
      source, drawn, kIsMasked<Mask>, column, count,
      [&](int64_t k) { return static_cast<int64_t>(runs.order[begin + k]); }, sums);
  if (column < source.cols) store_as(dtoken + token * source.cols + column, sums);
}

/// Step 3. There are as many blocks as there could be long runs; those without one end at once.
template <int n, class A, class Mask>
__global__ void __launch_bounds__(kWarp* kRunWarps)
    sum_long_runs(const Source<A> source, const Mask mask, const Runs runs, float* dtoken) {
  if (static_cast<int32_t>(blockIdx.x) >= *runs.long_count) return;
  const int64_t token = runs.long_tokens[blockIdx.x], column = own_column<n>();
  const int32_t first = runs.begin[token] + static_cast<int32_t>(threadIdx.y),
                end = runs.end[token];

  typename Mask::template Drawn<n> drawn(mask, column);
  float sums[n] = {};
  add_rows(
      source, drawn, kIsMasked<Mask>, column, (end - first + kRunWarps - 1) / kRunWarps,
      [&](int64_t k) { return static_cast<int64_t>(runs.order[first + k * kRunWarps]); }, sums);

  __shared__ float of_warps[kRunWarps][n][kWarp];
#pragma unroll
  for (int i = 0; i < n; ++i) of_warps[threadIdx.y][i][threadIdx.x] = sums[i];
  __syncthreads();
  if (threadIdx.y != 0 || column >= source.cols) return;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    for (int w = 1; w < kRunWarps; ++w) sums[i] += of_warps[w][i][threadIdx.x];
  }
  store_as(dtoken + token * source.cols + column, sums);
}

/// Step 1: sorts the row numbers by token and finds the runs.
Runs sort_rows(Queue& queue, const int64_t* tokens, int64_t rows, int64_t vocab) {
  const auto take = [&](int64_t count) {
    return static_cast<uint32_t*>(queue.take(count * sizeof(uint32_t)));
  };
  uint32_t *keys = take(rows), *order = take(rows), *sorted_keys = take(rows),
           *sorted_order = take(rows);
  auto* marks = reinterpret_cast<int32_t*>(take(2 * vocab + 1));
  const Runs runs{sorted_order, marks, marks + vocab, marks + 2 * vocab,
                  reinterpret_cast<int32_t*>(take(rows / kLong + 1))};

  TUTTI_CUDA_CALL(cudaMemsetAsync, marks, 0, (2 * vocab + 1) * sizeof(int32_t), queue.stream);
  if (rows == 0) return runs;

  constexpr int kThreads = 256;
  const auto blocks = static_cast<unsigned>(pieces_of(rows, kThreads));
  fill_keys<<<blocks, kThreads, 0, queue.stream>>>(tokens, keys, order, rows);
  check_launch("embed_backward: keys");
  // The sort looks at the bits of `vocab` only; as a key, `vocab` itself marks rows without
  // a token.
  int bits = 1;
  while (bits < 32 && vocab >> bits != 0) ++bits;
  size_t bytes = 0;
  const auto sort = [&](void* scratch) {
    check_cuda(
        cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, sorted_keys, order, sorted_order,
                                        static_cast<int>(rows), 0, bits, queue.stream),
        "embed_backward: sort");
  };
  // The first call only says how much scratch the second needs.
  sort(nullptr);
  sort(queue.take(std::max<size_t>(bytes, 1)));
  find_runs<<<blocks, kThreads, 0, queue.stream>>>(sorted_keys, runs, rows, vocab);
  check_launch("embed_backward: runs");
  return runs;
}

template <int n, class A, class Mask>
void launch(Queue& queue, const Mask& mask, const int64_t* tokens, const Source<A>& source,
            float* dtoken, float* dposition, int64_t length, int64_t vocab) {
  const auto tiles = static_cast<unsigned>(pieces_of(source.cols, kWarp * n));
  const auto blocks = [&](int64_t warps) {
    return dim3(static_cast<unsigned>(pieces_of(warps, kWarps)), tiles);
  };
  if (dposition != nullptr && length > 0) {
    sum_positions<n>
        <<<blocks(length), dim3(kWarp, kWarps), 0, queue.stream>>>(source, mask, dposition, length);
    check_launch("embed_backward: positions");
  }

  if (dtoken == nullptr || vocab == 0) return;
  const Runs runs = sort_rows(queue, tokens, source.rows, vocab);
  sum_tokens<n>
      <<<blocks(vocab), dim3(kWarp, kWarps), 0, queue.stream>>>(source, mask, runs, dtoken, vocab);
  check_launch("embed_backward: tokens");

  // The number of long runs is known on the device alone, and the host does not wait for it.
  if (source.rows < kLong) return;
  const dim3 runs_at_most(static_cast<unsigned>(source.rows / kLong), tiles);
  sum_long_runs<n>
      <<<runs_at_most, dim3(kWarp, kRunWarps), 0, queue.stream>>>(source, mask, runs, dtoken);
  check_launch("embed_backward: long runs");
}

}  // namespace

template <class A>
void embed_backward(Queue& queue, const int64_t* tokens, const A* dout, float* dtoken,
                    float* dposition, int64_t rows, int64_t length, int64_t vocab, int64_t cols,
                    const Dropout* dropout) {
  if (cols == 0) return;
  const Source<A> source{dout, rows, cols};
  constexpr int n = kVector<A>;

  const auto with = [&](const auto& mask) {
    if (whole_packs<A>(cols, {dout, dtoken, dposition})) {
      launch<n>(queue, mask, tokens, source, dtoken, dposition, length, vocab);
    } else {
      launch<1>(queue, mask, tokens, source, dtoken, dposition, length, vocab);
    }
  };

  if (is_off(dropout)) {
    with(NoMask{});
  } else {
    with(KeyedMask(*dropout, cols));
  }
}

#define TUTTI_INSTANCE(A)                                                                          \
  template void embed_backward(Queue&, const int64_t*, const A*, float*, float*, int64_t, int64_t, \
                               int64_t, int64_t, const Dropout*);
TUTTI_FOR_EACH_TYPE(TUTTI_INSTANCE)

}  // namespace tutti::rows
