// Embedding: rows of the token table are gathered, rows of the position table added, with dropout.
#include "cuda/kernels/columns.cuh"
#include "cuda/kernels/mask.cuh"

namespace tutti::rows {

namespace {

/// out[row] = (token[tokens[row]] + position[row % length]) factor, in float32 and rounded once.
template <class A, int n, bool kMasked>
struct Embed {
  static constexpr int kLanes = n, kSums = 0;
  struct Own {};
  struct Input {
    Pack<float, n> token, position;
  };
  const int64_t* tokens;
  const float *token, *position;  ///< position may be null
  A* out;
  int64_t length, cols;

  __device__ Own own(int64_t) const { return {}; }
  __device__ Input load(int64_t row, int64_t column, const Own&) const {
    Input input;
    input.token.load(token + tokens[row] * cols + column);
    if (position != nullptr)
      input.position.load(position + divide(row, length).rest * cols + column);
    return input;
  }

  __device__ void run(const Input& input, const Own&, int64_t row, int64_t column,
                      const float (&factors)[n], float (&)[1][n]) const {
    float values[n], places[n] = {};
    input.token.get(values);
    if (position != nullptr) input.position.get(places);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      values[i] += places[i];
      if constexpr (kMasked) values[i] *= factors[i];
    }
    store_as(out + row * cols + column, values);
  }
};

template <class A, int n>
void pass(Queue& queue, const int64_t* tokens, const float* token, const float* position, A* out,
          int64_t rows, int64_t length, int64_t cols, const Dropout* dropout) {
  if (is_off(dropout)) {
    const Embed<A, n, false> plain{tokens, token, position, out, length, cols};
    launch_columns<A>(queue, "embed", plain, NoMask{}, rows, cols);
  } else {
    const Embed<A, n, true> masked{tokens, token, position, out, length, cols};
    launch_columns<A>(queue, "embed", masked, KeyedMask(*dropout, cols), rows, cols);
  }
}

}  // namespace

template <class A>
void embed(Queue& queue, const int64_t* tokens, const float* token, const float* position, A* out,
           int64_t rows, int64_t length, int64_t cols, const Dropout* dropout) {
  if (whole_packs<A>(cols, {token, position, out})) {
    pass<A, kVector<A>>(queue, tokens, token, position, out, rows, length, cols, dropout);
  } else {
    pass<A, 1>(queue, tokens, token, position, out, rows, length, cols, dropout);
  }
}

#define TUTTI_INSTANCE(A)                                                                       \
  template void embed(Queue&, const int64_t*, const float*, const float*, A*, int64_t, int64_t, \
                      int64_t, const Dropout*);
TUTTI_FOR_EACH_TYPE(TUTTI_INSTANCE)

}  // namespace tutti::rows
