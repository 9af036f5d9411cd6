// Rotary positions, with the bias before them (forward) or its gradient (backward). Columns of the
// pass are not those of the array:
//   - Column v < heads * dim / 2 of the pass is the pair (i, i + dim / 2) of head h, where h and i
//     are the quotient and rest of v by dim / 2.
//   - The columns of the pass after these are the array's columns after the heads: not turned.
#include "cuda/kernels/columns.cuh"

namespace tutti::rows {

namespace {

template <class A, int n, bool kBackward>
struct Turn {
  static constexpr int kLanes = n, kSums = kBackward ? 2 : 0;
  struct Own {
    float one[n], two[n];  ///< biases
    int64_t column, angle;
    bool paired;
  };
  struct Input {
    Pack<A, n> one, two;
    Pack<float, n> cosine, sine;
  };
  A* x;
  const float *bias, *table;
  int64_t length, dim, columns, pairs;  ///< pairs: of a row, all heads

  // Each pair is one column here and two in the array.
  __device__ int64_t column_of(int64_t v) const {
    if (v >= pairs) return v + pairs;
    const Division at = divide(v, dim / 2);
    return at.quotient * dim + at.rest;
  }

  __device__ Own own(int64_t v) const {
    Own own;
    own.paired = v < pairs;
    own.column = column_of(v);
    own.angle = own.paired ? divide(v, dim / 2).rest : 0;
    load_or_zero(bias, own.column, own.one);
    if (own.paired) load_or_zero(bias, own.column + dim / 2, own.two);
    return own;
  }

  __device__ Input load(int64_t row, int64_t, const Own& own) const {
    Input input;
    const A* from = x + row * columns + own.column;
    input.one.load(from);
    if (own.paired) {
      const float* angles = table + divide(row, length).rest * dim + own.angle;
      input.two.load(from + dim / 2);
      input.cosine.load(angles);
      input.sine.load(angles + dim / 2);
    }
    return input;
  }

  __device__ void run(const Input& input, const Own& own, int64_t row, int64_t, const float (&)[n],
                      float (&sums)[kBackward ? 2 : 1][n]) const {
    A* to = x + row * columns + own.column;
    float a[n];
    input.one.get(a);

    // What is not turned gets its bias, or its column sum, alone.
    if (!own.paired) {
#pragma unroll
      for (int i = 0; i < n; ++i) {
        if constexpr (kBackward) {
          sums[0][i] += a[i];
        } else {
          a[i] += own.one[i];
        }
      }
      if (!kBackward && bias != nullptr) store_as(to, a);
      return;
    }

    // Forward turns by the angle, backward by its negative. Backward has no bias: `own`
    // holds zeros.
    float b[n], cosine[n], sine[n];
    input.two.get(b);
    input.cosine.get(cosine);
    input.sine.get(sine);

#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float before_a = a[i] + own.one[i], before_b = b[i] + own.two[i];
      const float turn = kBackward ? -sine[i] : sine[i];
      a[i] = fmaf(-before_b, turn, before_a * cosine[i]);
      b[i] = fmaf(before_a, turn, before_b * cosine[i]);
      if constexpr (kBackward) {
        sums[0][i] += a[i];
        sums[1][i] += b[i];
      }
    }
    store_as(to, a);
    store_as(to + dim / 2, b);
  }

  // The two sums of a pair go to its two columns; other columns have one.
  __device__ int64_t place(int sum, int64_t v) const {
    if (sum == 0) return column_of(v);
    return v < pairs ? column_of(v) + dim / 2 : -1;
  }
};

template <bool kBackward, class A>
void launch(Queue& queue, const char* name, A* x, const float* bias, const float* table,
            float* dbias, const RotaryShape& s) {
  const int64_t rows = s.batch * s.length, pairs = s.heads * (s.dim / 2), cols = s.columns - pairs;
  const Chunks chunks = chunks_of<A>(rows, s.columns);
  const auto with = [&](auto lanes) {
    const Turn<A, decltype(lanes)::value, kBackward> pass{x,     bias,      table, s.length,
                                                          s.dim, s.columns, pairs};
    if constexpr (kBackward) {
      launch_with_sums(queue, name, pass, NoMask{}, dbias, s.columns, rows, cols, chunks);
    } else {
      launch_columns(queue, name, pass, NoMask{}, nullptr, 0, rows, cols, chunks);
    }
  };
  // No pack may reach over the middle or the end of a head.
  if (whole_packs<A>(s.columns, {x, bias, table}) && s.dim / 2 % kVector<A> == 0) {
    with(std::integral_constant<int, kVector<A>>{});
  } else {
    with(std::integral_constant<int, 1>{});
  }
}

}  // namespace

template <class A>
void rotary(Queue& queue, A* x, const float* bias, const float* table, const RotaryShape& shape) {
  launch<false>(queue, "rotary", x, bias, table, nullptr, shape);
}

template <class A>
void rotary_backward(Queue& queue, A* dx, const float* table, float* dbias,
                     const RotaryShape& shape) {
  launch<true>(queue, "rotary_backward", dx, nullptr, table, dbias, shape);
}

#define TUTTI_INSTANCE(A)                                                           \
  template void rotary(Queue&, A*, const float*, const float*, const RotaryShape&); \
  template void rotary_backward(Queue&, A*, const float*, float*, const RotaryShape&);
TUTTI_FOR_EACH_TYPE(TUTTI_INSTANCE)

}  // namespace tutti::rows
