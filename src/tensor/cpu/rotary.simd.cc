// Rotary positions (Su et al.), with pairs of halves as GPT-NeoX and Llama have them. The bias
// of the layer before is added on the way, and backward sums its gradient: one pass over the
// array each.
#include "base/simd/vec.h"
#include "tensor/cpu/kernel_tables.h"

namespace tutti::TUTTI_ISA {

namespace {

/// Calls turn(row, column, cosines, sines) for each head of each row, and rest(row, column, count)
/// for the columns after them.
template <typename Turn, typename Rest>
inline __attribute__((always_inline)) void for_heads(const float* table, const RotaryShape& s,
                                                     Turn&& turn, Rest&& rest) {
  for (int64_t r = 0; r < s.batch * s.length; ++r) {
    const float *cosines = table + r % s.length * s.dim, *sines = cosines + s.dim / 2;
    for (int64_t h = 0; h < s.heads; ++h) turn(r, h * s.dim, cosines, sines);
    rest(r, s.heads * s.dim, s.columns - s.heads * s.dim);
  }
}

void rotary(float* x, const float* bias, const float* table, const RotaryShape& s) {
  const int64_t half = s.dim / 2;
  for_heads(
      table, s,
      [&](int64_t row, int64_t column, const float* cosines, const float* sines) {
        float *one = x + row * s.columns + column, *two = one + half;
        for_vectors(half, [&](int64_t c, auto lanes) {
          const F a = lanes.load(one + c) + load_or_zero(bias, column + c, lanes);
          const F b = lanes.load(two + c) + load_or_zero(bias, column + half + c, lanes);
          const F cosine = lanes.load(cosines + c), sine = lanes.load(sines + c);

          // (a, b) turned by the angle: (a cos - b sin, b cos + a sin).
          lanes.store(one + c, fnma(b, sine, a * cosine));
          lanes.store(two + c, fma(a, sine, b * cosine));
        });
      },
      [&](int64_t row, int64_t column, int64_t count) {
        // The columns after the heads (values) are not turned, but have a bias.
        if (bias == nullptr) return;
        float* rest = x + row * s.columns + column;
        for_vectors(count, [&](int64_t c, auto lanes) {
          lanes.store(rest + c, lanes.load(rest + c) + lanes.load(bias + column + c));
        });
      });
}

void rotary_backward(float* dx, const float* table, float* dbias, const RotaryShape& s) {
  const int64_t half = s.dim / 2;
  clear(dbias, s.columns);
  for_heads(
      table, s,
      [&](int64_t row, int64_t column, const float* cosines, const float* sines) {
        float *one = dx + row * s.columns + column, *two = one + half;
        for_vectors(half, [&](int64_t c, auto lanes) {
          const F a = lanes.load(one + c), b = lanes.load(two + c);
          const F cosine = lanes.load(cosines + c), sine = lanes.load(sines + c);

          // The transposed rotation. The bias was added before turning, so its gradient is that of
          // the pair turned back.
          const F da = fma(b, sine, a * cosine), db = fnma(a, sine, b * cosine);
          lanes.store(one + c, da);
          lanes.store(two + c, db);
          add_to(dbias, column + c, da, lanes);
          add_to(dbias, column + half + c, db, lanes);
        });
      },
      [&](int64_t row, int64_t column, int64_t count) {
        const float* rest = dx + row * s.columns + column;
        for_vectors(count, [&](int64_t c, auto lanes) {
          add_to(dbias, column + c, lanes.load(rest + c), lanes);
        });
      });
}

}  // namespace

void fill_rotary(Kernels& table) {
  table.rotary = rotary;
  table.rotary_backward = rotary_backward;
}

}  // namespace tutti::TUTTI_ISA
