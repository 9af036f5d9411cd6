// Causal attention, backward. Probabilities are computed again from the scores and the kept
// log-sum-exp (to base 2). Per sample and head:
//   P = 2^(q k' - lse)         q k' are the scores times log2(e) / sqrt D
//   dP = dout v'
//   S = P * (dP - delta)       delta = the row sums of dout * out
//   dq = S k / sqrt D, dk = S' q / sqrt D, dv = P' dout
// dk and dv of a group of heads are added in the order of the heads. Queries go in blocks of kBlock
// rows: first P and S of the block, panel of keys by panel, then dq, both by tiles of 6 queries; then
// its share of dk and dv by tiles of 6 keys. Tiles load and store their running sums, which leaves
// every sum one chain.
#include <cmath>

#include "tensor/cpu/kernel_tables.h"
#include "tensor/cpu/tile.h"

namespace tutti::TUTTI_ISA {

namespace {

/// A multiple of a tile's rows, so that a tile of keys meets its own queries in one block.
constexpr int64_t kBlock = 16 * kTileRows;
/// Keys that dq is added up over at a time: a multiple of a panel.
constexpr int64_t kKeys = 64;
static_assert(kKeys % kPanel == 0);

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
/// Floats of a row of at least n, an odd number of cache lines: rows do not share sets of the cache.
int64_t odd_lines(int64_t n) { return round_up(n, 32) + 16; }

/// The scratch of one head, which fits the second-level cache at the usual sizes. Without memory
/// (null) it only counts its floats.
struct Scratch {
  int64_t length, dim, padded, cols;
  int64_t row;                                      ///< of P and S
  float *keys_t, *values_t;                         // panels of the transposes
  float *queries, *keys, *douts, *dkeys, *dvalues;  // [length, padded]
  float* dqueries;                                  // [kBlock, padded]
  float *p, *s;                                     // [kBlock, row]
  float* delta;                                     // [length]
  int64_t floats = 0;                               // of all of it

  Scratch(float* work, int64_t length_, int64_t dim_, int64_t vector = kWidth,
          int64_t panel = kPanel)
      : length(length_),
        dim(dim_),
        padded(round_up(dim_, vector)),
        cols(round_up(length_, panel)),
        row(odd_lines(cols)) {
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
    dqueries = take(kBlock * padded);
    p = take(kBlock * row);
    s = take(kBlock * row);
    delta = take(length);
  }
};

/// Stores the vectors at `column` of `rows` rows that follow each other, each x(row) (added to what
/// is there if `more`), and adds them to the bias gradient, row by row.
template <class Rows>
inline __attribute__((always_inline)) void put(float* out, int64_t stride, float* dbias, int rows,
                                               int64_t column, int64_t dim, bool more, Rows&& x) {
  const auto with = [&](auto&& get, auto&& put) __attribute__((always_inline)) {
    F sum = dbias != nullptr ? get(dbias + column) : zero();
    for (int r = 0; r < rows; ++r) {
      float* at = out + r * stride + column;
      F value = x(r);
      sum = sum + value;
      put(at, more ? get(at) + value : value);
    }
    if (dbias != nullptr) put(dbias + column, sum);
  };
  const int64_t left = dim - column;
  if (left >= kWidth) {
    with([](const float* at) { return load(at); }, [](float* at, F v) { store(at, v); });
  } else {
    const M mask = first(left);
    with([&](const float* at) { return load(at, mask); },
         [&](float* at, F v) { store(at, v, mask); });
  }
}

/// Rows [i, i + rows) of P over the panel of keys at j; they are rows `at` and on of the scratch.
template <int rows>
void probabilities(const Scratch& w, const float* lse, int64_t i, int64_t at, int64_t j) {
  float* p = w.p + at * w.row;
  with_vectors(panel_vectors(i + rows, j), [&](auto vectors) {
    Tile<rows, vectors()> tile;
    tile.multiply(w.queries + i * w.padded, w.padded, 1, w.keys_t + j * w.dim, kPanel, w.dim);
    for (int r = 0; r < rows; ++r) {
      // Keys after the query get zeros, since the tiles of keys read whole tiles of P and S.
      const F l = set(lse[i + r]);
      for (int n = 0; n < vectors(); ++n) {
        const int64_t column = j + n * kWidth, seen = i + r + 1 - column;
        F x = exp2(tile.c[r][n] - l);
        if (seen < kWidth) x = select(first(seen < 0 ? 0 : seen), x, zero());
        store(p + r * w.row + column, x);
      }
    }
  });
}

/// The same of S, where P is there.
template <int rows>
void slopes(const Scratch& w, int64_t i, int64_t at, int64_t j) {
  float *p = w.p + at * w.row, *s = w.s + at * w.row;
  with_vectors(panel_vectors(i + rows, j), [&](auto vectors) {
    Tile<rows, vectors()> tile;
    tile.multiply(w.douts + i * w.padded, w.padded, 1, w.values_t + j * w.dim, kPanel, w.dim);
    for (int r = 0; r < rows; ++r) {
      const F d = set(w.delta[i + r]);
      for (int n = 0; n < vectors(); ++n) {
        const int64_t k = r * w.row + j + n * kWidth;
        store(s + k, load(p + k) * (tile.c[r][n] - d));
      }
    }
  });
}

/// What the keys [j, j + kKeys) add to rows [i, i + rows) of dq, which is complete with the last
/// keys that they see.
template <int rows>
void query_tile(const Scratch& w, int64_t i, int64_t at, int64_t j, float scale, float* dq,
                float* dbias, int64_t stride) {
  const int64_t end = i + rows, to = least(j + kKeys, end);
  for (int64_t c = 0; c < w.dim; c += kPanel) {
    with_vectors(panel_vectors(w.dim, c), [&](auto vectors) {
      float* sums = w.dqueries + at * w.padded + c;
      Tile<rows, vectors()> tile;
      if (j > 0) tile.load_from(sums, w.padded);
      tile.multiply(w.s + at * w.row + j, w.row, 1, w.keys + j * w.padded + c, w.padded, to - j);
      if (to < end) return tile.store_to(sums, w.padded);
#pragma clang loop unroll(full)
      for (int n = 0; n < vectors(); ++n)
        put(dq + i * stride, stride, dbias, rows, c + n * kWidth, w.dim, false,
            [&](int r) { return tile.c[r][n] * set(scale); });
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
      if (!fresh) tile.load_from(sums + j0 * w.padded + c, w.padded);
      tile.multiply(x + (from - i0) * w.row + j0, 1, w.row, y + from * w.padded + c, w.padded,
                    to - from);
      tile.store_to(sums + j0 * w.padded + c, w.padded);
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

  // What a loop reads again and again stays in the first-level cache: a panel of keys or values, a
  // few keys, the block's dout or queries.
  for (int64_t i0 = 0; i0 < length; i0 += kBlock) {
    const int64_t to = least(i0 + kBlock, length);
    /// Calls f with the rows of each tile from the one on that sees key j.
    const auto tiles = [&](int64_t j, auto&& f) __attribute__((always_inline)) {
      for (int64_t i = j > i0 ? j / kTileRows * kTileRows : i0; i < to; i += kTileRows)
        with_rows(to - i, [&](auto rows) { f(rows, i); });
    };

    // P and S of the block, as far as the diagonal.
    for (int64_t j = 0; j < to; j += kPanel) {
      tiles(j, [&](auto rows, int64_t i) { probabilities<rows()>(w, lse, i, i - i0, j); });
      tiles(j, [&](auto rows, int64_t i) { slopes<rows()>(w, i, i - i0, j); });
    }
    for (int64_t j = 0; j < to; j += kKeys)
      tiles(j, [&](auto rows, int64_t i) {
        query_tile<rows()>(w, i, i - i0, j, scale, dqkv, dbias, stride);
      });

    // The block's share of dk and dv of all keys that its queries see.
    const auto keys = [&](const float* x, const float* y, float* sums) {
      for (int64_t j = 0; j < to; j += kTileRows)
        with_rows(to - j, [&](auto rows) { key_tile<rows()>(w, x, y, sums, j, i0, to); });
    };
    keys(w.p, w.douts, w.dvalues);
    keys(w.s, w.queries, w.dkeys);
  }
}

// Adds a head's dk and dv to its group's; the group's first head (not `more`) writes them.
void put_keys_and_values(const Scratch& w, float* dk, float* dv, float* dk_bias, float* dv_bias,
                         int64_t stride, bool more) {
  const F scale = set(1 / std::sqrt(static_cast<float>(w.dim)));
  // A few rows at a time, so that the sums of the bias stay in registers for as long.
  constexpr int64_t kRows = 8;
  for (int64_t t = 0; t < w.length; t += kRows) {
    const auto rows = static_cast<int>(least(kRows, w.length - t));
    for (int64_t c = 0; c < w.dim; c += kWidth) {
      const int64_t from = t * w.padded + c;
      put(dk + t * stride, stride, dk_bias, rows, c, w.dim, more,
          [&](int r) { return load(w.dkeys + from + r * w.padded) * scale; });
      put(dv + t * stride, stride, dv_bias, rows, c, w.dim, more,
          [&](int r) { return load(w.dvalues + from + r * w.padded); });
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
        // Rows that lie together are transposed faster than those of the whole array.
        pack_rows(qkv + k, stride, length, dim, w.padded, w.keys);
        pack_rows(qkv + v, stride, length, dim, w.padded, w.dvalues);
        pack_transposed(w.keys, w.padded, length, dim, log2_scale, w.keys_t);
        pack_transposed(w.dvalues, w.padded, length, dim, 1, w.values_t);
      }
      head(w, dout + q, qkv + q, out + q, lse + h * length, dqkv + q, bias_at(q), width, stride);
      put_keys_and_values(w, dqkv + k, dqkv + v, bias_at(k), bias_at(v), stride, more);
    }
    dout += length * width, out += length * width, lse += shape.heads * length;
    qkv += length * stride, dqkv += length * stride;
  }
}

int64_t attention_work(const AttentionShape& shape) {
  // Forward's Scratch, in attention.simd.cc, takes a part of this: fewer arrays, and one tile's
  // scores.
  return Scratch(nullptr, shape.length, shape.dim, kWidestVector, kWidestPanel).floats;
}

}  // namespace

void fill_attention_backward(Kernels& table) {
  table.attention_backward = attention_backward;
  table.attention_work = attention_work;
}

}  // namespace tutti::TUTTI_ISA
