// Bias and activation in one pass. Forward leaves h + bias in h, from which backward computes the
// derivative again: a 16-bit derivative kept instead would be rounded.
#include "cuda/kernels/activation.cuh"
#include "cuda/kernels/columns.cuh"

namespace tutti::rows {

namespace {

/// g = f(h + bias), h += bias.
template <class A, int n, Activation kind>
struct BiasActivation {
  static constexpr int kLanes = n, kSums = 0;
  struct Own {
    float bias[n];
  };
  using Input = Pack<A, n>;
  A* h;
  const float* bias;
  A* g;
  int64_t cols;

  __device__ Own own(int64_t column) const {
    Own own;
    load_or_zero(bias, column, own.bias);
    return own;
  }
  __device__ Input load(int64_t row, int64_t column, const Own&) const {
    Input input;
    input.load(h + row * cols + column);
    return input;
  }

  __device__ void run(const Input& input, const Own& own, int64_t row, int64_t column,
                      const float (&)[n], float (&)[1][n]) const {
    float values[n];
    input.get(values);
#pragma unroll
    for (int i = 0; i < n; ++i) values[i] += own.bias[i];
    // h + bias is left for backward; without a bias h holds it already.
    if (bias != nullptr) store_as(h + row * cols + column, values);
#pragma unroll
    for (int i = 0; i < n; ++i) values[i] = activated<kind, kFast<A>>(values[i]).value;
    store_as(g + row * cols + column, values);
  }
};

/// dh = dg f'(left), with its column sums. dh may be dg: a thread reads its elements first.
template <class A, int n, Activation kind>
struct ActivationBackward {
  static constexpr int kLanes = n, kSums = 1;
  struct Own {};
  struct Input {
    Pack<A, n> dg, left;
  };
  const A *dg, *left;
  A* dh;
  int64_t cols;

  __device__ Own own(int64_t) const { return {}; }
  __device__ Input load(int64_t row, int64_t column, const Own&) const {
    Input input;
    input.dg.load(dg + row * cols + column);
    input.left.load(left + row * cols + column);
    return input;
  }

  __device__ void run(const Input& input, const Own&, int64_t row, int64_t column,
                      const float (&)[n], float (&sums)[1][n]) const {
    float values[n], before[n];
    input.dg.get(values);
    input.left.get(before);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      values[i] *= activated<kind, kFast<A>>(before[i]).derivative;
      sums[0][i] += values[i];
    }
    store_as(dh + row * cols + column, values);
  }

  __device__ int64_t place(int, int64_t column) const { return column; }
};

}  // namespace

template <class A>
void bias_activation(Queue& queue, A* h, const float* bias, A* g, int64_t rows, int64_t cols,
                     Activation kind) {
  with_activation(kind, [&]<class Kind>(Kind) {
    constexpr const char* kName = "bias_activation";
    if (whole_packs<A>(cols, {h, bias, g})) {
      const BiasActivation<A, kVector<A>, Kind::value> pass{h, bias, g, cols};
      launch_columns<A>(queue, kName, pass, NoMask{}, rows, cols);
    } else {
      launch_columns<A>(queue, kName, BiasActivation<A, 1, Kind::value>{h, bias, g, cols}, NoMask{},
                        rows, cols);
    }
  });
}

template <class A>
void activation_backward(Queue& queue, const A* dg, const A* left, A* dh, float* dbias,
                         int64_t rows, int64_t cols, Activation kind) {
  const Chunks chunks = chunks_of<A>(rows, cols);
  with_activation(kind, [&]<class Kind>(Kind) {
    constexpr const char* kName = "activation_backward";
    if (whole_packs<A>(cols, {dg, left, dh})) {
      const ActivationBackward<A, kVector<A>, Kind::value> pass{dg, left, dh, cols};
      launch_with_sums(queue, kName, pass, NoMask{}, dbias, cols, rows, cols, chunks);
    } else {
      const ActivationBackward<A, 1, Kind::value> pass{dg, left, dh, cols};
      launch_with_sums(queue, kName, pass, NoMask{}, dbias, cols, rows, cols, chunks);
    }
  });
}

#define TUTTI_INSTANCE(A)                                                                     \
  template void bias_activation(Queue&, A*, const float*, A*, int64_t, int64_t, Activation);  \
  template void activation_backward(Queue&, const A*, const A*, A*, float*, int64_t, int64_t, \
                                    Activation);
TUTTI_FOR_EACH_TYPE(TUTTI_INSTANCE)

}  // namespace tutti::rows
