// SwiGLU: g = silu(gate) * up for rows (gate, up). A thread has the same columns of both halves.
// Forward leaves h + bias in h, as other activations do.
#include "cuda/kernels/activation.cuh"
#include "cuda/kernels/columns.cuh"

namespace tutti::rows {

namespace {

/// g = silu(gate) up after bias, h += bias.
template <class A, int n>
struct BiasSwiglu {
  static constexpr int kLanes = n, kSums = 0;
  struct Own {
    float gate[n], up[n];
  };
  struct Input {
    Pack<A, n> gate, up;
  };
  A* h;
  const float* bias;
  A* g;
  int64_t cols;

  __device__ Own own(int64_t column) const {
    Own own;
    load_or_zero(bias, column, own.gate);
    load_or_zero(bias, cols + column, own.up);
    return own;
  }

  __device__ Input load(int64_t row, int64_t column, const Own&) const {
    Input input;
    input.gate.load(h + row * 2 * cols + column);
    input.up.load(h + row * 2 * cols + cols + column);
    return input;
  }

  __device__ void run(const Input& input, const Own& own, int64_t row, int64_t column,
                      const float (&)[n], float (&)[1][n]) const {
    float gate[n], up[n];
    input.gate.get(gate);
    input.up.get(up);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      gate[i] += own.gate[i];
      up[i] += own.up[i];
    }
    if (bias != nullptr) {
      store_as(h + row * 2 * cols + column, gate);
      store_as(h + row * 2 * cols + cols + column, up);
    }
#pragma unroll
    for (int i = 0; i < n; ++i) gate[i] = silu<kFast<A>>(gate[i]).value * up[i];
    store_as(g + row * cols + column, gate);
  }
};

/// dh = dg times the derivatives by gate and up, with its column sums. dh may be `left`.
template <class A, int n>
struct SwigluBackward {
  static constexpr int kLanes = n, kSums = 2;
  struct Own {};
  struct Input {
    Pack<A, n> dg, gate, up;
  };
  const A *dg, *left;
  A* dh;
  int64_t cols;

  __device__ Own own(int64_t) const { return {}; }
  __device__ Input load(int64_t row, int64_t column, const Own&) const {
    Input input;
    input.dg.load(dg + row * cols + column);
    input.gate.load(left + row * 2 * cols + column);
    input.up.load(left + row * 2 * cols + cols + column);
    return input;
  }

  __device__ void run(const Input& input, const Own&, int64_t row, int64_t column,
                      const float (&)[n], float (&sums)[2][n]) const {
    float d[n], gate[n], up[n];
    input.dg.get(d);
    input.gate.get(gate);
    input.up.get(up);

    // gate and up are replaced by their gradients: each pair is read before it is written.
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const Value s = silu<kFast<A>>(gate[i]);
      gate[i] = d[i] * (s.derivative * up[i]);
      up[i] = d[i] * s.value;
      sums[0][i] += gate[i];
      sums[1][i] += up[i];
    }
    store_as(dh + row * 2 * cols + column, gate);
    store_as(dh + row * 2 * cols + cols + column, up);
  }

  __device__ int64_t place(int sum, int64_t column) const { return sum * cols + column; }
};

}  // namespace

template <class A>
void bias_swiglu(Queue& queue, A* h, const float* bias, A* g, int64_t rows, int64_t cols) {
  if (whole_packs<A>(cols, {h, bias, g})) {
    launch_columns<A>(queue, "bias_swiglu", BiasSwiglu<A, kVector<A>>{h, bias, g, cols}, NoMask{},
                      rows, cols);
  } else {
    launch_columns<A>(queue, "bias_swiglu", BiasSwiglu<A, 1>{h, bias, g, cols}, NoMask{}, rows,
                      cols);
  }
}

template <class A>
void swiglu_backward(Queue& queue, const A* dg, const A* left, A* dh, float* dbias, int64_t rows,
                     int64_t cols) {
  const Chunks chunks = chunks_of<A>(rows, cols);
  if (whole_packs<A>(cols, {dg, left, dh})) {
    launch_with_sums(queue, "swiglu_backward", SwigluBackward<A, kVector<A>>{dg, left, dh, cols},
                     NoMask{}, dbias, 2 * cols, rows, cols, chunks);
  } else {
    launch_with_sums(queue, "swiglu_backward", SwigluBackward<A, 1>{dg, left, dh, cols}, NoMask{},
                     dbias, 2 * cols, rows, cols, chunks);
  }
}

#define TUTTI_INSTANCE(A)                                                    \
  template void bias_swiglu(Queue&, A*, const float*, A*, int64_t, int64_t); \
  template void swiglu_backward(Queue&, const A*, const A*, A*, float*, int64_t, int64_t);
TUTTI_FOR_EACH_TYPE(TUTTI_INSTANCE)

}  // namespace tutti::rows
