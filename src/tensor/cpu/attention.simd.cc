// Causal attention, forward. With T = length, D = dim:
//   1. Per head of keys and values: the bias is added; k is packed transposed, times log2(e) / sqrt
//      D so that scores come out as exponents of two, and v by rows. Both are to stay in the
//      second-level cache.
//   2. Per head of queries of that group: the bias is added; then for each tile of 6 queries the
//      scores against all keys up to the last of the six (6 x T floats of scratch, not T x T), the
//      softmax of each row, and their product with v.
// Whole tiles of keys after the query are never read; within the last tile such keys get
// probability zero.
#include <cmath>
#include <limits>

#include "base/portable_math.h"
#include "tensor/cpu/kernel_tables.h"
#include "tensor/cpu/tile.h"

namespace tutti::TUTTI_ISA {

namespace {

void add_bias(float* x, const float* bias, int64_t stride, int64_t rows, int64_t dim) {
  for (int64_t r = 0; r < rows; ++r, x += stride) {
    for_vectors(dim, [&](int64_t c, auto lanes) {
      lanes.store(x + c, lanes.load(x + c) + lanes.load(bias + c));
    });
  }
}

float log2_of(float x) {
  constexpr double kLog2E = 1.4426950408889634;
  return static_cast<float>(portable::log(x) * kLog2E);
}

/// Turns the scores of a row into 2^(score - largest), with zeros from `keys` to `end`. Returns the
/// sum and puts the largest score into `top`.
float softmax(float* row, int64_t keys, int64_t end, float& top) {
  const F lowest = set(-std::numeric_limits<float>::infinity());
  Lanes t = lanes_of(lowest);
  for_lanes(keys, [&](int64_t c, auto lanes, int part) {
    t.part[part] = max(t.part[part], lanes.keep(load(row + c), lowest));
  });
  top = largest(t);

  // The largest exponent is 0, so nothing overflows and the sum is at least 1.
  const F vt = set(top);
  Lanes s = lanes_of(zero());
  for_lanes(keys, [&](int64_t c, auto lanes, int part) {
    const F p = lanes.keep(exp2(load(row + c) - vt));
    s.part[part] = s.part[part] + p;
    store(row + c, p);
  });

  // Every row of the tile is multiplied by the values of all `end` keys.
  for (int64_t c = round_up(keys, kLanes); c < end; c += kWidth) store(row + c, zero());
  return sum(s);
}

/// The packed keys and values of a group, and a tile's scores. attention_work counts its floats.
struct Scratch {
  int64_t padded, cols;
  float *keys, *values, *scores;

  Scratch(float* work, int64_t length, int64_t dim)
      : padded(round_up(dim, kWidth)), cols(round_up(length, kPanel)) {
    keys = work;
    values = keys + cols * dim;
    scores = values + length * padded;
  }
};

// Attention of one head of queries over the keys and values in the scratch. Rows of q are `stride`
// apart, those of out `width`.
void head(const float* q, float* out, float* lse, const Scratch& scratch, int64_t length,
          int64_t dim, int64_t stride, int64_t width) {
  const int64_t padded = scratch.padded, cols = scratch.cols;
  float *keys = scratch.keys, *values = scratch.values, *scores = scratch.scores;
  for (int64_t i0 = 0; i0 < length; i0 += kTileRows) {
    const int64_t count = length - i0 < kTileRows ? length - i0 : kTileRows, end = i0 + count;
    with_rows(
        count, [&](auto rows) __attribute__((always_inline)) {
          // Scores of the tile's queries against all keys up to its last query.
          for (int64_t j = 0; j < end; j += kPanel) {
            with_vectors(panel_vectors(end, j), [&](auto vectors) {
              Tile<rows(), vectors()> tile;
              tile.multiply(q + i0 * stride, stride, 1, keys + j * dim, kPanel, dim);
              for (int r = 0; r < rows(); ++r) {
                for (int n = 0; n < vectors(); ++n)
                  store(scores + r * cols + j + n * kWidth, tile.c[r][n]);
              }
            });
          }

          // Row r may see the keys up to its own. The division by the sum waits for the result: it
          // has `dim` elements, the row of probabilities up to `length`.
          float share[kTileRows];
          for (int r = 0; r < rows(); ++r) {
            float top;
            const float total = softmax(scores + r * cols, i0 + r + 1, end, top);
            share[r] = 1 / total;
            lse[i0 + r] = top + log2_of(total);
          }

          // The probabilities times the values. The packed values are padded, the result is not.
          for (int64_t c = 0; c < dim; c += kPanel) {
            with_vectors(panel_vectors(dim, c), [&](auto vectors) {
              Tile<rows(), vectors()> tile;
              tile.multiply(scores, cols, 1, values + c, padded, end);
              for (int r = 0; r < rows(); ++r) {
                for (int n = 0; n < vectors(); ++n) {
                  const int64_t at = c + n * kWidth, left = dim - at;
                  store(out + (i0 + r) * width + at, tile.c[r][n] * set(share[r]),
                        first(left < kWidth ? left : kWidth));
                }
              }
            });
          }
        });
  }
}

void attention(float* qkv, const float* bias, float* out, float* lse, float* work,
               const AttentionShape& shape) {
  const int64_t length = shape.length, dim = shape.dim, width = shape.heads * dim,
                stride = shape.columns();
  const Scratch scratch(work, length, dim);

  // log2(e) / sqrt D, which is multiplied into the packed keys.
  const float scale = 1.44269504f / std::sqrt(static_cast<float>(dim));
  for (int64_t b = 0; b < shape.batch;
       ++b, qkv += length * stride, out += length * width, lse += shape.heads * length) {
    // Backward reads qkv with its bias, so the bias is added in place, once per column.
    const auto biased = [&](int64_t column) {
      if (bias != nullptr) add_bias(qkv + column, bias + column, stride, length, dim);
      return qkv + column;
    };

    // The heads of a group follow each other, so keys and values are packed once for all of them.
    for (int64_t h = 0; h < shape.heads; ++h) {
      if (h % shape.group() == 0) {
        pack_transposed(biased(shape.key_column(h)), stride, length, dim, scale, scratch.keys);
        pack_rows(biased(shape.value_column(h)), stride, length, dim, scratch.padded,
                  scratch.values);
      }
      head(biased(h * dim), out + h * dim, lse + h * length, scratch, length, dim, stride, width);
    }
  }
}

}  // namespace

void fill_attention(Kernels& table) { table.attention = attention; }

}  // namespace tutti::TUTTI_ISA
