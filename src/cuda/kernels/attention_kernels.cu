// Causal attention in tiles (as FlashAttention), in float32, for what cuDNN does not take. Forward
// and backward share their tiles, so they are in one file.
//   D      columns of a tile: dim rounded up to 32, 64, 128 or 256; what is above dim is zeros
//   rows   queries, and keys, of a tile: 64, or 32 where D is above 64
//   A block of 256 threads is 16 x 16: thread (y, x) has elements (y + 16 i, x + 16 j) of every
//   product.
// The kernels are
//   forward   A block per tile of queries walks the tiles of keys: it keeps the running maximum and
//             sum of each row, and scales the output so far whenever the maximum grows.
//   delta     dout . out of each query.
//   dq        A block per tile of queries walks the tiles of keys: P again from lse,
//             dS = P (dout v^T - delta), dq += dS k.
//   dk, dv    A block per tile of keys walks its group's heads, and their tiles of queries:
//             dv += P^T dout, dk += dS^T q.
// Every sum is a chain in one thread or a tree over 16 lanes, in an order fixed by the length
// alone: a sample's bits do not depend on the batch around it.
#include <cmath>

#include "cuda/errors.h"
#include "cuda/kernels/attention_kernels.h"
#include "cuda/kernels/common.cuh"

namespace tutti {

namespace {

constexpr int kThreads = 256;
constexpr float kLog2e = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

using rows::narrow;
using rows::widen;

/// Where heads are in the arrays. A row of qkv has `columns` elements, a row of out `width`.
struct Layout {
  int length, dim, heads, kv_heads, group;
  int64_t columns, width;
  float scale;

  __device__ int64_t row(int batch) const { return static_cast<int64_t>(batch) * length; }
  __device__ int64_t query(int batch, int head) const { return row(batch) * columns + head * dim; }
  __device__ int64_t key(int batch, int kv_head) const { return query(batch, heads + kv_head); }
  __device__ int64_t value(int batch, int kv_head) const {
    return query(batch, heads + kv_heads + kv_head);
  }
  __device__ int64_t output(int batch, int head) const { return row(batch) * width + head * dim; }
  /// The first element of a head in lse and delta.
  __device__ int64_t statistic(int batch, int head) const {
    return (static_cast<int64_t>(batch) * heads + head) * length;
  }
};

template <int D>
struct Tile {
  static constexpr int rows = D <= 64 ? 64 : 32;
  // Four more floats per row avoid bank conflicts of float4 reads down a column, and keep
  // float4s aligned.
  static constexpr int pitch = D + 4;
  static constexpr int square_pitch = rows + 4;
  static constexpr int floats = rows * pitch, square_floats = rows * square_pitch;
  // A thread's part of a rows x rows product is i x i elements, of a rows x D one i x j.
  static constexpr int i = rows / 16, j = D / 16;
};

/// Loads rows [first, first + rows) of a head, of which the array has `length`, into a tile. What
/// is outside the head becomes zeros.
template <int D, class T>
__device__ void load(float* tile, const T* from, int64_t stride, int first, const Layout& layout) {
  for (int n = threadIdx.x; n < Tile<D>::rows * D; n += kThreads) {
    const int row = n / D, column = n % D;
    const bool inside = first + row < layout.length && column < layout.dim;
    tile[row * Tile<D>::pitch + column] =
        inside ? widen(from[(first + row) * stride + column]) : 0.f;
  }
}

/// c = a b^T of two tiles. Both are read along their rows, as float4.
template <int D>
__device__ void product(const float* a, const float* b, float (&c)[Tile<D>::i][Tile<D>::i], int y,
                        int x) {
  constexpr int I = Tile<D>::i;
#pragma unroll
  for (int i = 0; i < I; ++i) {
#pragma unroll
    for (int j = 0; j < I; ++j) c[i][j] = 0;
  }

  // An element is one chain of FMAs over d, four steps per load.
#pragma unroll 4
  for (int d = 0; d < D; d += 4) {
    float4 left[I], right[I];
#pragma unroll
    for (int i = 0; i < I; ++i) {
      left[i] = *reinterpret_cast<const float4*>(a + (y + 16 * i) * Tile<D>::pitch + d);
      right[i] = *reinterpret_cast<const float4*>(b + (x + 16 * i) * Tile<D>::pitch + d);
    }
#pragma unroll
    for (int i = 0; i < I; ++i) {
#pragma unroll
      for (int j = 0; j < I; ++j) {
        c[i][j] = fmaf(left[i].x, right[j].x, c[i][j]);
        c[i][j] = fmaf(left[i].y, right[j].y, c[i][j]);
        c[i][j] = fmaf(left[i].z, right[j].z, c[i][j]);
        c[i][j] = fmaf(left[i].w, right[j].w, c[i][j]);
      }
    }
  }
}

/// c += square * b, with a rows x rows tile and a rows x D tile.
template <int D>
__device__ void accumulate(const float* square, const float* b, float (&c)[Tile<D>::i][Tile<D>::j],
                           int y, int x) {
  constexpr int I = Tile<D>::i, J = Tile<D>::j;
  for (int k = 0; k < Tile<D>::rows; k += 4) {
    // Four columns of the square at a time; an element is one chain of FMAs over k.
    float left[I][4];
#pragma unroll
    for (int i = 0; i < I; ++i) {
      const float4 four =
          *reinterpret_cast<const float4*>(square + (y + 16 * i) * Tile<D>::square_pitch + k);
      left[i][0] = four.x, left[i][1] = four.y, left[i][2] = four.z, left[i][3] = four.w;
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int j = 0; j < J; ++j) {
        const float right = b[(k + n) * Tile<D>::pitch + x + 16 * j];
#pragma unroll
        for (int i = 0; i < I; ++i) c[i][j] = fmaf(left[i][n], right, c[i][j]);
      }
    }
  }
}

/// The maximum and the sum over the 16 lanes of a row. Every lane gets the same bits, since both
/// operands of a step only swap places.
__device__ float row_max(float x) {
#pragma unroll
  for (int lane = 8; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, lane));
  return x;
}
__device__ float row_sum(float x) {
#pragma unroll
  for (int lane = 8; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffff, x, lane);
  return x;
}

/// Writes a thread's part of a rows x D tile, as far as it is inside the head.
template <int D, class T>
__device__ void write(T* to, int64_t stride, int first, const Layout& layout,
                      const float (&c)[Tile<D>::i][Tile<D>::j], float factor, int y, int x) {
#pragma unroll
  for (int i = 0; i < Tile<D>::i; ++i) {
    const int row = first + y + 16 * i;
#pragma unroll
    for (int j = 0; j < Tile<D>::j; ++j) {
      const int column = x + 16 * j;
      if (row < layout.length && column < layout.dim)
        to[row * stride + column] = narrow<T>(c[i][j] * factor);
    }
  }
}

template <int D, class T>
__global__ void __launch_bounds__(kThreads)
    attention_forward(const T* qkv, T* out, float* lse, Layout layout) {
  constexpr int I = Tile<D>::i, J = Tile<D>::j, rows = Tile<D>::rows;
  extern __shared__ float4 shared[];
  float* const q = reinterpret_cast<float*>(shared);
  float* const k = q + Tile<D>::floats;
  float* const v = k + Tile<D>::floats;
  float* const p = v + Tile<D>::floats;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  const int query_tile = gridDim.x - 1 - blockIdx.x;  // the longest first
  const int head = blockIdx.y, kv_head = head / layout.group, batch = blockIdx.z;
  const float scale = layout.scale * kLog2e;

  load<D>(q, qkv + layout.query(batch, head), layout.columns, query_tile * rows, layout);

  // Output, maximum and sum of each row so far, relative to that maximum. The scores are in base 2:
  // exp2f is the cheaper exponential, and lse is converted at the end.
  float o[I][J] = {}, top[I], sum[I] = {};
#pragma unroll
  for (int i = 0; i < I; ++i) top[i] = -INFINITY;

  // Tiles of keys after the query's own tile hold nothing that it may see.
  for (int tile = 0; tile <= query_tile; ++tile) {
    __syncthreads();
    load<D>(k, qkv + layout.key(batch, kv_head), layout.columns, tile * rows, layout);
    load<D>(v, qkv + layout.value(batch, kv_head), layout.columns, tile * rows, layout);
    __syncthreads();

    float s[I][I];
    product<D>(q, k, s, y, x);
#pragma unroll
    for (int i = 0; i < I; ++i) {
      const int row = query_tile * rows + y + 16 * i;
      float grown = top[i];
#pragma unroll
      for (int j = 0; j < I; ++j) {
        s[i][j] = tile * rows + x + 16 * j <= row ? s[i][j] * scale : -INFINITY;
        grown = fmaxf(grown, s[i][j]);
      }

      // Key 0 is in the first tile and seen by every row, so the maximum is finite from then on,
      // and exp2f(-infinity - grown) drops the empty start.
      grown = row_max(grown);

      const float keep = exp2f(top[i] - grown);
      float added = 0;
#pragma unroll
      for (int j = 0; j < I; ++j) {
        const float e = exp2f(s[i][j] - grown);
        p[(y + 16 * i) * Tile<D>::square_pitch + x + 16 * j] = e;
        added += e;
      }

      // Sum and output so far are brought to the new maximum.
      sum[i] = sum[i] * keep + row_sum(added);
      top[i] = grown;
#pragma unroll
      for (int j = 0; j < J; ++j) o[i][j] *= keep;
    }
    __syncwarp();  // a row of p is written and read by the same 16 lanes
    accumulate<D>(p, v, o, y, x);
  }
#pragma unroll
  for (int i = 0; i < I; ++i) {
    const int row = query_tile * rows + y + 16 * i;
    if (x == 0 && row < layout.length)
      lse[layout.statistic(batch, head) + row] = top[i] * kLn2 + logf(sum[i]);
#pragma unroll
    for (int j = 0; j < J; ++j) o[i][j] /= sum[i];
  }
  write<D>(out + layout.output(batch, head), layout.width, query_tile * rows, layout, o, 1.f, y, x);
}

/// delta: one warp per head of a row.
template <class T>
__global__ void attention_delta(const T* dout, const T* out, float* delta, int64_t head_rows,
                                Layout layout) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (n >= head_rows) return;
  const int lane = threadIdx.x % 32;
  float sum = 0;
  for (int d = lane; d < layout.dim; d += 32) {
    sum = fmaf(widen(dout[n * layout.dim + d]), widen(out[n * layout.dim + d]), sum);
  }

  sum += __shfl_xor_sync(0xffffffff, sum, 16);
  sum = row_sum(sum);
  const int64_t row = n / layout.heads;
  if (lane == 0) {
    const int batch = static_cast<int>(row / layout.length),
              position = static_cast<int>(row % layout.length);
    delta[layout.statistic(batch, static_cast<int>(n % layout.heads)) + position] = sum;
  }
}

/// Turns a thread's scores into its part of P, and its dout v^T into its part of dS; both are zero
/// where a query does not see a key.
template <int D>
__device__ void probabilities(float (&s)[Tile<D>::i][Tile<D>::i],
                              float (&ds)[Tile<D>::i][Tile<D>::i], const float* lse,
                              const float* delta, int first_query, int first_key,
                              const Layout& layout, int y, int x) {
#pragma unroll
  for (int i = 0; i < Tile<D>::i; ++i) {
    const int row = first_query + y + 16 * i;
    // Rows past the end are filled up with zeros and must not add anything.
    const bool inside = row < layout.length;
    const float row_lse = inside ? lse[row] * kLog2e : 0.f, row_delta = inside ? delta[row] : 0.f;
#pragma unroll
    for (int j = 0; j < Tile<D>::i; ++j) {
      const bool seen = inside && first_key + x + 16 * j <= row;
      const float p = exp2f(s[i][j] * (layout.scale * kLog2e) - row_lse);
      s[i][j] = seen ? p : 0.f;
      ds[i][j] = seen ? p * (ds[i][j] - row_delta) : 0.f;
    }
  }
}

/// dq: the loop of attention_forward, with P from lse instead of a running maximum.
template <int D, class T>
__global__ void __launch_bounds__(kThreads)
    attention_dq(const T* dout, const T* qkv, const float* lse, const float* delta, T* dqkv,
                 Layout layout) {
  constexpr int I = Tile<D>::i, J = Tile<D>::j, rows = Tile<D>::rows;
  extern __shared__ float4 shared[];
  float* const q = reinterpret_cast<float*>(shared);
  float* const dy = q + Tile<D>::floats;
  float* const k = dy + Tile<D>::floats;
  float* const v = k + Tile<D>::floats;
  float* const square = v + Tile<D>::floats;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  const int query_tile = gridDim.x - 1 - blockIdx.x;
  const int head = blockIdx.y, kv_head = head / layout.group, batch = blockIdx.z;
  const int64_t statistic = layout.statistic(batch, head);

  load<D>(q, qkv + layout.query(batch, head), layout.columns, query_tile * rows, layout);
  load<D>(dy, dout + layout.output(batch, head), layout.width, query_tile * rows, layout);
  float dq[I][J] = {};
  for (int tile = 0; tile <= query_tile; ++tile) {
    __syncthreads();
    load<D>(k, qkv + layout.key(batch, kv_head), layout.columns, tile * rows, layout);
    load<D>(v, qkv + layout.value(batch, kv_head), layout.columns, tile * rows, layout);
    __syncthreads();

    float s[I][I], ds[I][I];
    product<D>(q, k, s, y, x);
    product<D>(dy, v, ds, y, x);
    probabilities<D>(s, ds, lse + statistic, delta + statistic, query_tile * rows, tile * rows,
                     layout, y, x);
#pragma unroll
    for (int i = 0; i < I; ++i) {
#pragma unroll
      for (int j = 0; j < I; ++j)
        square[(y + 16 * i) * Tile<D>::square_pitch + x + 16 * j] = ds[i][j];
    }
    __syncwarp();
    accumulate<D>(square, k, dq, y, x);
  }

  // The scale of the scores is a factor of their gradient, too.
  write<D>(dqkv + layout.query(batch, head), layout.columns, query_tile * rows, layout, dq,
           layout.scale, y, x);
}

/// dk and dv: a block has them alone and walks all queries of all heads that share its keys, so
/// no two blocks add to the same place.
template <int D, class T>
__global__ void __launch_bounds__(kThreads)
    attention_dkv(const T* dout, const T* qkv, const float* lse, const float* delta, T* dqkv,
                  Layout layout) {
  constexpr int I = Tile<D>::i, J = Tile<D>::j, rows = Tile<D>::rows;
  extern __shared__ float4 shared[];
  float* const q = reinterpret_cast<float*>(shared);
  float* const dy = q + Tile<D>::floats;
  float* const k = dy + Tile<D>::floats;
  float* const v = k + Tile<D>::floats;
  float* const square = v + Tile<D>::floats;  // [key, query]
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  const int tiles = gridDim.x, key_tile = blockIdx.x;
  const int kv_head = blockIdx.y, batch = blockIdx.z;

  load<D>(k, qkv + layout.key(batch, kv_head), layout.columns, key_tile * rows, layout);
  load<D>(v, qkv + layout.value(batch, kv_head), layout.columns, key_tile * rows, layout);
  float dk[I][J] = {}, dv[I][J] = {};

  // Queries before the tile do not see its keys. The heads' order is fixed, and so is the sum's.
  for (int head = kv_head * layout.group; head < (kv_head + 1) * layout.group; ++head) {
    const int64_t statistic = layout.statistic(batch, head);
    for (int tile = key_tile; tile < tiles; ++tile) {
      __syncthreads();
      load<D>(q, qkv + layout.query(batch, head), layout.columns, tile * rows, layout);
      load<D>(dy, dout + layout.output(batch, head), layout.width, tile * rows, layout);
      __syncthreads();

      float s[I][I], ds[I][I];
      product<D>(q, k, s, y, x);
      product<D>(dy, v, ds, y, x);
      probabilities<D>(s, ds, lse + statistic, delta + statistic, tile * rows, key_tile * rows,
                       layout, y, x);
#pragma unroll
      for (int i = 0; i < I; ++i) {
#pragma unroll
        for (int j = 0; j < I; ++j)
          // P and dS are stored transposed, so their rows cross warps and take barriers of the
          // whole block. They share one square, one after the other: shared memory is what limits
          // the tiles.
          square[(x + 16 * j) * Tile<D>::square_pitch + y + 16 * i] = s[i][j];
      }
      __syncthreads();
      accumulate<D>(square, dy, dv, y, x);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < I; ++i) {
#pragma unroll
        for (int j = 0; j < I; ++j)
          square[(x + 16 * j) * Tile<D>::square_pitch + y + 16 * i] = ds[i][j];
      }
      __syncthreads();
      accumulate<D>(square, q, dk, y, x);
    }
  }

  write<D>(dqkv + layout.key(batch, kv_head), layout.columns, key_tile * rows, layout, dk,
           layout.scale, y, x);
  write<D>(dqkv + layout.value(batch, kv_head), layout.columns, key_tile * rows, layout, dv, 1.f, y,
           x);
}

/// Launches a kernel with more shared memory than it gets unless it asks.
template <class Kernel, class... Arguments>
void launch(const char* name, Kernel* kernel, dim3 blocks, int bytes, cudaStream_t stream,
            Arguments... arguments) {
  TUTTI_CUDA_CALL(cudaFuncSetAttribute, kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  kernel<<<blocks, kThreads, bytes, stream>>>(arguments...);
  check_launch(name);
}

Layout layout_of(const AttentionShape& shape) {
  Layout layout;
  layout.length = static_cast<int>(shape.length);
  layout.dim = static_cast<int>(shape.dim);
  layout.heads = static_cast<int>(shape.heads);
  layout.kv_heads = static_cast<int>(shape.kv_heads);
  layout.group = static_cast<int>(shape.group());
  layout.columns = shape.columns();
  layout.width = shape.heads * shape.dim;
  layout.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.dim)));
  return layout;
}

template <int D>
dim3 blocks_of(const AttentionShape& shape, int64_t heads) {
  const int64_t tiles = rows::pieces_of(shape.length, Tile<D>::rows);
  return dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(heads),
              static_cast<unsigned>(shape.batch));
}

/// Calls work.template operator()<D>() with the D that the shape's heads need.
template <class Work>
void with_columns(const AttentionShape& shape, const Work& work) {
  if (shape.dim <= 32) return work.template operator()<32>();
  if (shape.dim <= 64) return work.template operator()<64>();
  if (shape.dim <= 128) return work.template operator()<128>();
  work.template operator()<256>();
}

}  // namespace

template <class A>
void launch_attention(const A* qkv, A* out, float* lse, const AttentionShape& shape,
                      cudaStream_t stream) {
  with_columns(shape, [&]<int D>() {
    constexpr int bytes = (3 * Tile<D>::floats + Tile<D>::square_floats) * sizeof(float);
    launch("attention", attention_forward<D, A>, blocks_of<D>(shape, shape.heads), bytes, stream,
           qkv, out, lse, layout_of(shape));
  });
}

template <class A>
void launch_attention_backward(const A* dout, const A* qkv, const A* out, const float* lse, A* dqkv,
                               float* delta, const AttentionShape& shape, cudaStream_t stream) {
  const int64_t head_rows = shape.batch * shape.length * shape.heads;
  const auto delta_blocks =
      static_cast<unsigned>(rows::pieces_of(head_rows, kThreads / rows::kWarp));
  attention_delta<<<delta_blocks, kThreads, 0, stream>>>(dout, out, delta, head_rows,
                                                         layout_of(shape));
  check_launch("attention_delta");

  // dq and dk, dv run one after the other on the stream; both read delta.
  with_columns(shape, [&]<int D>() {
    constexpr int bytes = (4 * Tile<D>::floats + Tile<D>::square_floats) * sizeof(float);
    launch("attention_dq", attention_dq<D, A>, blocks_of<D>(shape, shape.heads), bytes, stream,
           dout, qkv, lse, delta, dqkv, layout_of(shape));
    launch("attention_dkv", attention_dkv<D, A>, blocks_of<D>(shape, shape.kv_heads), bytes, stream,
           dout, qkv, lse, delta, dqkv, layout_of(shape));
  });
}

#define TUTTI_INSTANCE(A)                                                                         \
  template void launch_attention(const A*, A*, float*, const AttentionShape&, cudaStream_t);      \
  template void launch_attention_backward(const A*, const A*, const A*, const float*, A*, float*, \
                                          const AttentionShape&, cudaStream_t);
TUTTI_FOR_EACH_TYPE(TUTTI_INSTANCE)

}  // namespace tutti
