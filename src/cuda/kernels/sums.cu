// Column passes that only add: sums over rows with their second stage, and a bias.
#include "cuda/kernels/columns.cuh"

namespace tutti::rows {

namespace {

/// Threads that share the chunks of one column.
constexpr int kChunkThreads = 32;

/// The second stage: thread y adds chunks y, y + kChunkThreads, ... of its column, and then the
/// threads' sums are added in order, so the order depends on the number of chunks alone.
__global__ void __launch_bounds__(kWarp* kChunkThreads)
    add_chunks(const float* partials, int64_t chunks, float* first, int64_t first_width,
               float* second, int64_t second_width) {
  const int64_t width = first_width + second_width,
                column = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  float sum = 0;
  if (column < width) {
#pragma unroll 4
    for (int64_t chunk = threadIdx.y; chunk < chunks; chunk += kChunkThreads)
      sum += partials[chunk * width + column];
  }

  __shared__ float of_threads[kChunkThreads][kWarp];
  of_threads[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
#pragma unroll
  for (int y = 1; y < kChunkThreads; ++y) sum += of_threads[y][threadIdx.x];

  if (column < first_width) {
    if (first != nullptr) first[column] = sum;
  } else if (second != nullptr) {
    second[column - first_width] = sum;
  }
}

/// sums[c] = the sum over rows of x[., c]; nothing is stored.
template <class A, int n>
struct ColumnSums {
  static constexpr int kLanes = n, kSums = 1;
  struct Own {};
  using Input = Pack<A, n>;
  const A* x;
  int64_t cols;

  __device__ Own own(int64_t) const { return {}; }
  __device__ Input load(int64_t row, int64_t column, const Own&) const {
    Input input;
    input.load(x + row * cols + column);
    return input;
  }
  __device__ void run(const Input& input, const Own&, int64_t, int64_t, const float (&)[n],
                      float (&sums)[1][n]) const {
    float values[n];
    input.get(values);
#pragma unroll
    for (int i = 0; i < n; ++i) sums[0][i] += values[i];
  }
  __device__ int64_t place(int, int64_t column) const { return column; }
};

/// y += bias, in place.
template <class A, int n>
struct AddBias {
  static constexpr int kLanes = n, kSums = 0;
  struct Own {
    float bias[n];
  };
  using Input = Pack<A, n>;
  A* y;
  const float* bias;
  int64_t cols;

  __device__ Own own(int64_t column) const {
    Own own;
    load_or_zero(bias, column, own.bias);
    return own;
  }
  __device__ Input load(int64_t row, int64_t column, const Own&) const {
    Input input;
    input.load(y + row * cols + column);
    return input;
  }

  __device__ void run(const Input& input, const Own& own, int64_t row, int64_t column,
                      const float (&)[n], float (&)[1][n]) const {
    float values[n];
    input.get(values);
#pragma unroll
    for (int i = 0; i < n; ++i) values[i] += own.bias[i];
    store_as(y + row * cols + column, values);
  }
};

}  // namespace

void add_partials(Queue& queue, const float* partials, int64_t chunks, float* first,
                  int64_t first_width, float* second, int64_t second_width) {
  const int64_t width = first_width + second_width;
  if (width == 0) return;
  add_chunks<<<static_cast<unsigned>(pieces_of(width, kWarp)), dim3(kWarp, kChunkThreads), 0,
               queue.stream>>>(partials, chunks, first, first_width, second, second_width);
  check_launch("sums over chunks");
}

template <class A>
void column_sums(Queue& queue, const A* x, float* sums, int64_t rows, int64_t cols) {
  if (sums == nullptr) return;
  const Chunks chunks = chunks_of<A>(rows, cols);
  if (whole_packs<A>(cols, {x})) {
    launch_with_sums(queue, "column_sums", ColumnSums<A, kVector<A>>{x, cols}, NoMask{}, sums, cols,
                     rows, cols, chunks);
  } else {
    launch_with_sums(queue, "column_sums", ColumnSums<A, 1>{x, cols}, NoMask{}, sums, cols, rows,
                     cols, chunks);
  }
}

template <class A>
void add_bias(Queue& queue, A* y, const float* bias, int64_t rows, int64_t cols) {
  if (bias == nullptr) return;
  if (whole_packs<A>(cols, {y, bias})) {
    launch_columns<A>(queue, "add_bias", AddBias<A, kVector<A>>{y, bias, cols}, NoMask{}, rows,
                      cols);
  } else {
    launch_columns<A>(queue, "add_bias", AddBias<A, 1>{y, bias, cols}, NoMask{}, rows, cols);
  }
}

#define TUTTI_INSTANCE(A)                                                \
  template void column_sums(Queue&, const A*, float*, int64_t, int64_t); \
  template void add_bias(Queue&, A*, const float*, int64_t, int64_t);
TUTTI_FOR_EACH_TYPE(TUTTI_INSTANCE)

}  // namespace tutti::rows
