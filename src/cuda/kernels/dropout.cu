// Dropout with what stands next to it: bias and residual in forward, the gradient of the bias in
// backward. Masks are drawn again in backward, never stored.
#include "cuda/kernels/columns.cuh"
#include "cuda/kernels/mask.cuh"

namespace tutti::rows {

namespace {

/// out = x + (y + bias) factor. The CPU has the same operations: an FMA with dropout, two
/// additions without.
template <class A, int n, bool kMasked>
struct BiasResidual {
  static constexpr int kLanes = n, kSums = 0;
  struct Own {
    float bias[n];
  };
  struct Input {
    Pack<A, n> y, x;
  };
  const A* y;
  const float* bias;
  const A* x;
  A* out;
  int64_t cols;

  __device__ Own own(int64_t column) const {
    Own own;
    load_or_zero(bias, column, own.bias);
    return own;
  }
  __device__ Input load(int64_t row, int64_t column, const Own&) const {
    Input input;
    input.y.load(y + row * cols + column);
    input.x.load(x + row * cols + column);
    return input;
  }

  __device__ void run(const Input& input, const Own& own, int64_t row, int64_t column,
                      const float (&factors)[n], float (&)[1][n]) const {
    float sums[n], residual[n];
    input.y.get(sums);
    input.x.get(residual);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float biased = sums[i] + own.bias[i];
      sums[i] = kMasked ? fmaf(biased, factors[i], residual[i]) : residual[i] + biased;
    }
    store_as(out + row * cols + column, sums);
  }
};

/// out = dy factor, with its column sums.
template <class A, int n>
struct DropoutBackward {
  static constexpr int kLanes = n, kSums = 1;
  struct Own {};
  using Input = Pack<A, n>;
  const A* dy;
  A* out;
  int64_t cols;

  __device__ Own own(int64_t) const { return {}; }
  __device__ Input load(int64_t row, int64_t column, const Own&) const {
    Input input;
    input.load(dy + row * cols + column);
    return input;
  }

  __device__ void run(const Input& input, const Own&, int64_t row, int64_t column,
                      const float (&factors)[n], float (&sums)[1][n]) const {
    float values[n];
    input.get(values);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      values[i] *= factors[i];
      sums[0][i] += values[i];
    }
    store_as(out + row * cols + column, values);
  }
  __device__ int64_t place(int, int64_t column) const { return column; }
};

/// One instance with and one without a mask: drawing costs more than the rest of the pass.
template <class A, int n>
void residual_pass(Queue& queue, const A* y, const float* bias, const A* x, A* out, int64_t rows,
                   int64_t cols, const Dropout* dropout) {
  constexpr const char* kName = "bias_residual";
  if (is_off(dropout)) {
    launch_columns<A>(queue, kName, BiasResidual<A, n, false>{y, bias, x, out, cols}, NoMask{},
                      rows, cols);
  } else {
    launch_columns<A>(queue, kName, BiasResidual<A, n, true>{y, bias, x, out, cols},
                      KeyedMask(*dropout, cols), rows, cols);
  }
}

}  // namespace

template <class A>
void bias_residual(Queue& queue, const A* y, const float* bias, const A* x, A* out, int64_t rows,
                   int64_t cols, const Dropout* dropout) {
  if (whole_packs<A>(cols, {y, bias, x, out})) {
    residual_pass<A, kVector<A>>(queue, y, bias, x, out, rows, cols, dropout);
  } else {
    residual_pass<A, 1>(queue, y, bias, x, out, rows, cols, dropout);
  }
}

template <class A>
void dropout_backward(Queue& queue, const A* dy, A* out, float* sums, int64_t rows, int64_t cols,
                      const Dropout* dropout) {
  if (is_off(dropout)) return column_sums(queue, dy, sums, rows, cols);
  const Chunks chunks = chunks_of<A>(rows, cols);
  const KeyedMask mask(*dropout, cols);
  if (whole_packs<A>(cols, {dy, out})) {
    launch_with_sums(queue, "dropout_backward", DropoutBackward<A, kVector<A>>{dy, out, cols}, mask,
                     sums, cols, rows, cols, chunks);
  } else {
    launch_with_sums(queue, "dropout_backward", DropoutBackward<A, 1>{dy, out, cols}, mask, sums,
                     cols, rows, cols, chunks);
  }
}

#define TUTTI_INSTANCE(A)                                                                     \
  template void bias_residual(Queue&, const A*, const float*, const A*, A*, int64_t, int64_t, \
                              const Dropout*);                                                \
  template void dropout_backward(Queue&, const A*, A*, float*, int64_t, int64_t, const Dropout*);
TUTTI_FOR_EACH_TYPE(TUTTI_INSTANCE)

}  // namespace tutti::rows
