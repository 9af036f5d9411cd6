// Embedding by a slice of a vocabulary, and positions added to some rows of a batch: what a model
// in columns needs instead of embed.
#include "cuda/kernels/columns.cuh"
#include "cuda/kernels/mask.cuh"

namespace tutti::rows {

namespace {

/// out[row] = the token's row of the table, or zeros where the token belongs to another slice.
template <int n>
struct EmbedSlice {
  static constexpr int kLanes = n, kSums = 0;
  struct Own {};
  struct Input {
    Pack<float, n> values;
    bool inside;
  };
  const int64_t* tokens;
  const float* table;
  float* out;
  int64_t cols, first, count;

  __device__ Own own(int64_t) const { return {}; }
  __device__ Input load(int64_t row, int64_t column, const Own&) const {
    const int64_t token = tokens[row] - first;
    Input input;
    input.inside = token >= 0 && token < count;
    if (input.inside) input.values.load(table + token * cols + column);
    return input;
  }

  __device__ void run(const Input& input, const Own&, int64_t row, int64_t column,
                      const float (&)[n], float (&)[1][n]) const {
    float values[n] = {};
    if (input.inside) input.values.get(values);
    store_as(out + row * cols + column, values);
  }
};

/// out[row] = (x[row] + position[(first_row + row) % length]) factor.
template <class A, int n, bool kMasked>
struct AddPositions {
  static constexpr int kLanes = n, kSums = 0;
  struct Own {};
  struct Input {
    Pack<A, n> x;
    Pack<float, n> position;
  };
  const A* x;
  const float* position;  ///< may be null
  A* out;
  int64_t first_row, length, cols;

  __device__ Own own(int64_t) const { return {}; }
  __device__ Input load(int64_t row, int64_t column, const Own&) const {
    Input input;
    input.x.load(x + row * cols + column);
    if (position != nullptr)
      input.position.load(position + divide(first_row + row, length).rest * cols + column);
    return input;
  }

  __device__ void run(const Input& input, const Own&, int64_t row, int64_t column,
                      const float (&factors)[n], float (&)[1][n]) const {
    float values[n], places[n] = {};
    input.x.get(values);
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
void add_positions(Queue& queue, const A* x, const float* position, A* out, int64_t rows,
                   int64_t first_row, int64_t length, int64_t cols, const Dropout* dropout) {
  if (is_off(dropout)) {
    const AddPositions<A, n, false> plain{x, position, out, first_row, length, cols};
    launch_columns<A>(queue, "positions", plain, NoMask{}, rows, cols);
  } else {
    const AddPositions<A, n, true> masked{x, position, out, first_row, length, cols};
    launch_columns<A>(queue, "positions", masked, KeyedMask(*dropout, cols), rows, cols);
  }
}

/// Numbers of tokens in the slice; `count` for tokens outside it, which embed_backward leaves out.
__global__ void number_tokens(const int64_t* tokens, int64_t* numbers, int64_t rows, int64_t first,
                              int64_t count) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const int64_t number = tokens[row] - first;
  numbers[row] = number >= 0 && number < count ? number : count;
}

void copy(Queue& queue, void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from)
    TUTTI_CUDA_CALL(cudaMemcpyAsync, to, from, bytes, cudaMemcpyDeviceToDevice, queue.stream);
}

}  // namespace

void embed_slice(Queue& queue, const int64_t* tokens, const float* table, float* out, int64_t rows,
                 int64_t cols, int64_t first, int64_t count) {
  if (whole_packs<float>(cols, {table, out})) {
    const EmbedSlice<kVector<float>> pass{tokens, table, out, cols, first, count};
    launch_columns<float>(queue, "embed_slice", pass, NoMask{}, rows, cols);
  } else {
    const EmbedSlice<1> pass{tokens, table, out, cols, first, count};
    launch_columns<float>(queue, "embed_slice", pass, NoMask{}, rows, cols);
  }
}

/// The same as embed_backward for a vocabulary of `count` tokens, without positions and
/// without dropout.
template <class A>
void embed_slice_backward(Queue& queue, const int64_t* tokens, const A* dout, float* dtable,
                          int64_t rows, int64_t cols, int64_t first, int64_t count) {
  auto* numbers = static_cast<int64_t*>(queue.take(std::max<size_t>(rows * sizeof(int64_t), 1)));
  if (rows > 0) {
    constexpr int kThreads = 256;
    number_tokens<<<static_cast<unsigned>(pieces_of(rows, kThreads)), kThreads, 0, queue.stream>>>(
        tokens, numbers, rows, first, count);
    check_launch("embed_slice_backward: numbers");
  }
  embed_backward(queue, numbers, dout, dtable, nullptr, rows, 1, count, cols, nullptr);
}

template <class A>
void positions(Queue& queue, const A* x, const float* position, A* out, int64_t rows,
               int64_t first_row, int64_t length, int64_t cols, const Dropout* dropout) {
  if (whole_packs<A>(cols, {x, position, out})) {
    add_positions<A, kVector<A>>(queue, x, position, out, rows, first_row, length, cols, dropout);
  } else {
    add_positions<A, 1>(queue, x, position, out, rows, first_row, length, cols, dropout);
  }
}

// embed_backward takes the first row for position 0, so the sums that it makes are rotated by
// first_row. They are made before dx is written, which may be dout.
template <class A>
void positions_backward(Queue& queue, const A* dout, A* dx, float* dposition, int64_t rows,
                        int64_t first_row, int64_t length, int64_t cols, const Dropout* dropout) {
  if (dposition != nullptr) {
    float* sums = take_floats(queue, length * cols);
    embed_backward<A>(queue, nullptr, dout, nullptr, sums, rows, length, 0, cols, dropout);
    const int64_t shift = first_row % length * cols, rest = length * cols - shift;
    copy(queue, dposition + shift, sums, rest * sizeof(float));
    copy(queue, dposition, sums + rest, shift * sizeof(float));
  }
  if (is_off(dropout)) {
    copy(queue, dx, dout, rows * cols * sizeof(A));
  } else {
    dropout_backward<A>(queue, dout, dx, nullptr, rows, cols, dropout);
  }
}

#define TUTTI_INSTANCE(A)                                                                         \
  template void embed_slice_backward(Queue&, const int64_t*, const A*, float*, int64_t, int64_t,  \
                                     int64_t, int64_t);                                           \
  template void positions(Queue&, const A*, const float*, A*, int64_t, int64_t, int64_t, int64_t, \
                          const Dropout*);                                                        \
  template void positions_backward(Queue&, const A*, A*, float*, int64_t, int64_t, int64_t,       \
                                   int64_t, const Dropout*);
TUTTI_FOR_EACH_TYPE(TUTTI_INSTANCE)

}  // namespace tutti::rows
