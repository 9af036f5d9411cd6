// Causal attention, backward. Probabilities are computed again from the scores and the kept
// log-sum-exp (to base 2). Per sample and head:
//   P = 2^(q k' - lse)         q k' are the scores times log2(e) / sqrt D
//   dP = dout v'
//   S = P * (dP - delta)       delta = the row sums of dout * out
//   dq = S k / sqrt D, dk = S' q / sqrt D, dv = P' dout
// dk and dv of a group of heads are added in the order of the heads. Queries go in blocks of kBlock
// rows: first P, S and dq of the block by tiles of 6 queries, then its share of dk and dv by tiles
// of 6 keys, which load and store their running sums once per block.
#include <cmath>

#include "tensor/cpu/kernel_tables.h"
#include "tensor/cpu/tile.h"

namespace tutti::TUTTI_ISA {

namespace {

/// A multiple of a tile's rows, so that a tile of keys meets its own queries in one block.
constexpr int64_t kBlock = 16 * kTileRows;

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/// The scratch of one head, which fits the second-level cache at the usual sizes. Without memory
/// (null) it only counts its floats.
struct Scratch {
  int64_t length, dim, padded, cols;
  float *keys_t, *values_t;                         // panels of the transposes
  float *queries, *keys, *douts, *dkeys, *dvalues;  // [length, padded]
  float *p, *s;                                     // [kBlock, cols]
  float* delta;                                     // [length]
  int64_t floats = 0;                               // of all of it

  Scratch(float* work, int64_t length_, int64_t dim_, int64_t vector = kWidth,
          int64_t panel = kPanel)
      : length(length_), dim(dim_), padded(round_up(dim_, vector)), cols(round_up(length_, panel)) {
    // Arrays begin on cache lines if `work` does.
    const auto take = [&](int64_t n) {
      float* at = work == nullptr ? nullptr : work + floats;
      floats += round_up(n, 16);
      return at;
    };

    keys_t = take(cols * dim);
    values_t = take(cols * dim);
    queries = take(length * padded);
    keys = take(length * padded);
    douts = take(length * padded);
    dkeys = take(length * padded);
    dvalues = take(length * padded);
    p = take(kBlock * cols);
    s = take(kBlock * cols);
    delta = take(length);
  }
};

/// Stores x as a vector of a row (added to what is there if `more`), and adds it to the
/// bias gradient.
inline void put(float* out, float* dbias, F x, int64_t column, int64_t dim, bool more = false) {
  const int64_t left = dim - column;
  const M mask = first(left < kWidth ? left : kWidth);
  store(out + column, more ? load(out + column, mask) + x : x, mask);
  if (dbias != nullptr) store(dbias + column, load(dbias + column, mask) + x, mask);
}

/// Computes rows [i0, i0 + rows) of P and S, which are rows `at` and on of the scratch, and of dq.
template <int rows>
void query_tile(const Scratch& w, const float* lse, int64_t i0, int64_t at, float scale, float* dq,
                float* dbias, int64_t stride) {
  const int64_t end = i0 + rows;
  float *p = w.p + at * w.cols, *s = w.s + at * w.cols;
  for (int64_t j = 0; j < end; j += kPanel) {
    with_vectors(panel_vectors(end, j), [&](auto vectors) {
      {
        Tile<rows, vectors()> tile;
        tile.multiply(w.queries + i0 * w.padded, w.padded, 1, w.keys_t + j * w.dim, kPanel, w.dim);
        for (int r = 0; r < rows; ++r) {
          // Keys after the query get zeros, since the tiles of keys read whole tiles of P and S.
          const F l = set(lse[i0 + r]);
          for (int n = 0; n < vectors(); ++n) {
            const int64_t column = j + n * kWidth, seen = i0 + r + 1 - column;
            F x = exp2(tile.c[r][n] - l);
            if (seen < kWidth) x = select(first(seen < 0 ? 0 : seen), x, zero());
            store(p + r * w.cols + column, x);
          }
        }
      }

      // dP of the same tile; P is still in the cache.
      Tile<rows, vectors()> tile;
      tile.multiply(w.douts + i0 * w.padded, w.padded, 1, w.values_t + j * w.dim, kPanel, w.dim);
      for (int r = 0; r < rows; ++r) {
        const F d = set(w.delta[i0 + r]);
        for (int n = 0; n < vectors(); ++n) {
          const int64_t k = r * w.cols + j + n * kWidth;
          store(s + k, load(p + k) * (tile.c[r][n] - d));
        }
      }
    });
  }

  // dq is complete here: all keys that these queries see are in S.
  for (int64_t c = 0; c < w.dim; c += kPanel) {
    with_vectors(panel_vectors(w.dim, c), [&](auto vectors) {
      Tile<rows, vectors()> tile;
      tile.multiply(s, w.cols, 1, w.keys + c, w.padded, end);
      for (int r = 0; r < rows; ++r) {
        for (int n = 0; n < vectors(); ++n) {
          put(dq + (i0 + r) * stride, dbias, tile.c[r][n] * set(scale), c + n * kWidth, w.dim);
        }
      }
    });
  }
}

/// sums[j0 .. j0 + rows) += x' y over the queries of the block that starts at i0 and ends before
/// `to`; x is P or S of that block.
template <int rows>
void key_tile(const Scratch& w, const float* x, const float* y, float* sums, int64_t j0, int64_t i0,
              int64_t to) {
  // The block that holds the tile's own queries is the first to reach it, so nothing need be
  // cleared; queries before the tile do not see its keys.
  const bool fresh = j0 >= i0;
  const int64_t from = fresh ? j0 : i0;
  for (int64_t c = 0; c < w.dim; c += kPanel) {
    with_vectors(panel_vectors(w.dim, c), [&](auto vectors) {
      Tile<rows, vectors()> tile;
      if (!fresh) {
#pragma clang loop unroll(full)
        for (int r = 0; r < rows; ++r) {
#pragma clang loop unroll(full)
          for (int n = 0; n < vectors(); ++n)
            tile.c[r][n] = load(sums + (j0 + r) * w.padded + c + n * kWidth);
        }
      }

      tile.multiply(x + (from - i0) * w.cols + j0, 1, w.cols, y + from * w.padded + c, w.padded,
                    to - from);
#pragma clang loop unroll(full)
      for (int r = 0; r < rows; ++r) {
#pragma clang loop unroll(full)
        for (int n = 0; n < vectors(); ++n)
          store(sums + (j0 + r) * w.padded + c + n * kWidth, tile.c[r][n]);
      }
    });
  }
}

// delta of each row. It equals the row sum of P * dP, but costs D products instead of T.
void row_products(const float* dout, const float* out, int64_t stride, const Scratch& w) {
  for (int64_t t = 0; t < w.length; ++t, dout += stride, out += stride) {
    Lanes d = lanes_of(zero());
    for_lanes(w.dim, [&](int64_t c, auto lanes, int part) {
      d.part[part] = fma(lanes.load(dout + c), lanes.load(out + c), d.part[part]);
    });
    w.delta[t] = sum(d);
  }
}

/// dq of a head of queries, and its dkeys and dvalues in the scratch, where keys and values are
/// packed already.
void head(const Scratch& w, const float* dout, const float* q, const float* out, const float* lse,
          float* dqkv, float* dbias, int64_t width, int64_t stride) {
  const int64_t length = w.length;
  const float scale = 1 / std::sqrt(static_cast<float>(w.dim));
  pack_rows(q, stride, length, w.dim, w.padded, w.queries);
  pack_rows(dout, width, length, w.dim, w.padded, w.douts);
  row_products(dout, out, width, w);

  for (int64_t i0 = 0; i0 < length; i0 += kBlock) {
    const int64_t to = least(i0 + kBlock, length);
    // P and S of the block, as far as the diagonal.
    for (int64_t i = i0; i < to; i += kTileRows) {
      with_rows(to - i, [&](auto rows) {
        query_tile<rows()>(w, lse, i, i - i0, scale, dqkv, dbias, stride);
      });
    }

    // The block's share of dk and dv of all keys that its queries see.
    for (int64_t j = 0; j < to; j += kTileRows) {
      with_rows(to - j, [&](auto rows) {
        key_tile<rows()>(w, w.p, w.douts, w.dvalues, j, i0, to);
        key_tile<rows()>(w, w.s, w.queries, w.dkeys, j, i0, to);
      });
    }
  }
}

// Adds a head's dk and dv to its group's; the group's first head (not `more`) writes them.
void put_keys_and_values(const Scratch& w, float* dk, float* dv, float* dk_bias, float* dv_bias,
                         int64_t stride, bool more) {
  const F scale = set(1 / std::sqrt(static_cast<float>(w.dim)));
  for (int64_t t = 0; t < w.length; ++t) {
    for (int64_t c = 0; c < w.dim; c += kWidth) {
      const int64_t from = t * w.padded + c;
      put(dk + t * stride, dk_bias, load(w.dkeys + from) * scale, c, w.dim, more);
      put(dv + t * stride, dv_bias, load(w.dvalues + from), c, w.dim, more);
    }
  }
}

void attention_backward(const float* dout, const float* qkv, const float* out, const float* lse,
                        float* dqkv, float* dbias, float* work, const AttentionShape& shape) {
  const int64_t length = shape.length, dim = shape.dim, width = shape.heads * dim,
                stride = shape.columns();
  const Scratch w(work, length, dim);
  const float log2_scale = 1.44269504f / std::sqrt(static_cast<float>(dim));

  const auto bias_at = [&](int64_t column) { return dbias == nullptr ? nullptr : dbias + column; };
  clear(dbias, stride);

  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t q = h * dim, k = shape.key_column(h), v = shape.value_column(h);

      // A group's first head packs its keys and values for all of its heads.
      const bool more = h % shape.group() != 0;
      if (!more) {
        pack_transposed(qkv + k, stride, length, dim, log2_scale, w.keys_t);
        pack_transposed(qkv + v, stride, length, dim, 1, w.values_t);
        pack_rows(qkv + k, stride, length, dim, w.padded, w.keys);
      }
      head(w, dout + q, qkv + q, out + q, lse + h * length, dqkv + q, bias_at(q), width, stride);
      put_keys_and_values(w, dqkv + k, dqkv + v, bias_at(k), bias_at(v), stride, more);
    }
    dout += length * width, out += length * width, lse += shape.heads * length;
    qkv += length * stride, dqkv += length * stride;
  }
}

int64_t attention_work(const AttentionShape& shape) {
  // One size serves both, though their layouts differ: `forward` is what the Scratch of
  // attention.simd.cc takes and a tile's scores.
  const Scratch backward(nullptr, shape.length, shape.dim, kWidestVector, kWidestPanel);
  const int64_t forward =
      backward.cols * shape.dim + shape.length * backward.padded + kTileRows * backward.cols;
  return backward.floats > forward ? backward.floats : forward;
}

}  // namespace

void fill_attention_backward(Kernels& table) {
  table.attention_backward = attention_backward;
  table.attention_work = attention_work;
}

}  // namespace tutti::TUTTI_ISA
