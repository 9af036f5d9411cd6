// Own float32 matmuls on one thread. c [m, n] = A B; A [m, k] and B [k, n] may each be stored
// transposed. A tile of c, kRows x kStrip, is held in registers: 14 x 32 with AVX-512, 6 x 16
// with AVX2.
//   1. k is cut into chunks of at most kDepth, n into panels of at most kPanelCols: a chunk of a
//      panel of B fits the second-level cache.
//   2. The panel is packed into strips, [depth, kStrip] each; strips that few rows will use are
//      read in place.
//   3. kRows rows of A at a time pass over the panel and are read in place; a transposed A is
//      packed, kRows columns at a time.
// Few rows of A times a transposed B would not pay for packing B: then the columns of B take the
// place of the rows, A is packed, and tiles of c are transposed before they are stored.
//
// While a tile computes it fetches what comes next: its lines of c, and a share of the following
// rows of A. Without this the first touch of both costs about 5 %.
//
// An element is one chain of FMAs in the order of k: the tile of a later chunk goes on from what c
// holds. So its bits depend on its row of A and its column of B alone, not on the other sizes, the
// cuts, the edges or the instruction set.
#include <cstring>
#include <utility>

#include "tensor/cpu/kernel_tables.h"
#include "tensor/cpu/tile.h"

namespace tutti::TUTTI_ISA {

namespace {

constexpr int64_t kRows = kWidth == 16 ? 14 : 6;
constexpr int64_t kStrip = 2 * kWidth;
constexpr int64_t kDepth = 384, kPanelCols = 384;
constexpr int64_t kLine = 16;  // floats of a cache line
/// With at most this many rows, packing a strip costs more than reading it in place, where every
/// step of k is another row of B and so another page. AVX2's narrow tile takes such a step in half
/// the time and cannot hide it.
constexpr int64_t kUnpackedRows = kWidth == 16 ? 1024 : 0;
/// Packing a transposed B costs as much as computing about 10 rows, so it is worth avoiding with up
/// to kFewRows rows, unless more than kPadding rows of zeros would be computed instead.
constexpr int64_t kFewRows = 128, kPadding = 8;

/// From this many floats on (1 MB, an L2 cache) a result may go past the caches.
constexpr int64_t kStreamed = int64_t{1} << 18;

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t parts(int64_t n, int64_t most) { return (n + most - 1) / most; }

/// An even cut of n > 0 into as few parts as `most` allows, in multiples of `step`.
int64_t share(int64_t n, int64_t most, int64_t step) {
  return round_up(parts(n, parts(n, most)), step);
}

/// Element (r, k) of A is at[r * row_stride + k * step].
struct Left {
  const float* at;
  int64_t row_stride, step;
};
/// Row k of a strip of B begins at at + k * step.
struct Right {
  const float* at;
  int64_t step;
};
/// The tile's place in c: `cols` columns are left of c from there on.
struct Target {
  float* at;
  int64_t stride, cols;
  bool fresh;             // nothing of it is computed yet
  bool streamed = false;  // whole strips of it go past the caches
};
/// Lines to fetch: `count` of them, `across` apart, for every kLine steps of k; the next ones are
/// `along` floats further.
struct Ahead {
  const float* at;
  int64_t count, across, along;
};

/// tile += a b. Meanwhile it fetches `ahead` and up to c_rows rows of c from next_c on.
template <int rows>
inline __attribute__((always_inline)) void accumulate(Tile<rows, 2>& tile, const Left& a,
                                                      const Right& b, int64_t depth,
                                                      const float* next_c, int64_t c_rows,
                                                      int64_t c_stride, const Ahead& ahead) {
  const float *left = a.at, *right = b.at, *next_left = ahead.at;
  int64_t k = 0;
  for (int64_t row = 0; k + kLine <= depth; k += kLine, ++row) {
    if (row < c_rows) {
      __builtin_prefetch(next_c, 1);
      __builtin_prefetch(next_c + kLine, 1);
      next_c += c_stride;
    }
    for (int64_t i = 0; i < ahead.count; ++i) __builtin_prefetch(next_left + i * ahead.across);
    next_left += ahead.along;

    // A strip that is read in place is not contiguous, so the processor does not fetch it
    // by itself.
    if (b.step != kStrip) {
      const float* next_right = right + kLine * b.step;
      for (int64_t i = 0; i < kLine; ++i, next_right += b.step) {
        __builtin_prefetch(next_right);
        __builtin_prefetch(next_right + kLine);
      }
    }
    tile.multiply(left, a.row_stride, a.step, right, b.step, kLine);
    left += kLine * a.step;
    right += kLine * b.step;
  }

  // The rest of the depth; the chain of FMAs goes on in the same order.
  tile.multiply(left, a.row_stride, a.step, right, b.step, depth - k);
}

using TileOf = void (*)(const Left&, const Right&, int64_t depth, const Target&, const Ahead&);

template <int rows>
void tile(const Left& a, const Right& b, int64_t depth, const Target& c, const Ahead& ahead) {
  Tile<rows, 2> tile;
  const bool whole = c.cols >= kStrip;
  const M low = first(least(c.cols, kWidth)),
          high = first(c.cols > kWidth ? least(c.cols - kWidth, kWidth) : 0);

  // A later chunk of k goes on from what the earlier ones left.
  if (!c.fresh) {
#pragma clang loop unroll(full)
    for (int r = 0; r < rows; ++r) {
      const float* from = c.at + r * c.stride;
      tile.c[r][0] = whole ? load(from) : load(from, low);
      tile.c[r][1] = whole ? load(from + kWidth) : load(from + kWidth, high);
    }
  }
  // A tile that starts from c needs it before it computes, so the next tile's lines are fetched.
  accumulate(tile, a, b, depth, c.fresh ? c.at : c.at + kStrip, c.streamed ? 0 : rows, c.stride,
             ahead);

#pragma clang loop unroll(full)
  for (int r = 0; r < rows; ++r) {
    float* to = c.at + r * c.stride;
    if (c.streamed) {
      stream(to, tile.c[r][0]);
      stream(to + kWidth, tile.c[r][1]);
    } else if (whole) {
      store(to, tile.c[r][0]);
      store(to + kWidth, tile.c[r][1]);
    } else {
      store(to, tile.c[r][0], low);
      store(to + kWidth, tile.c[r][1], high);
    }
  }
}

/// The tile of few_rows_product: row r of the tile goes to column r of c, whose `cols` are its rows
/// then; c is fresh.
template <int rows>
void transposed_tile(const Left& a, const Right& b, int64_t depth, const Target& c,
                     const Ahead& ahead) {
  alignas(64) float lying[kWidth * kStrip] = {}, standing[kStrip * kWidth];
  Tile<rows, 2> tile;
  accumulate(tile, a, b, depth, c.at, c.cols, c.stride, ahead);

#pragma clang loop unroll(full)
  for (int r = 0; r < rows; ++r) {
    store(lying + r * kStrip, tile.c[r][0]);
    store(lying + r * kStrip + kWidth, tile.c[r][1]);
  }

  // Through memory, 8 x 8 at a time; rows past the last are zeros and are not stored below.
  for (int64_t r = 0; r < rows; r += 8) {
    for (int64_t j = 0; j < kStrip; j += 8) {
      transpose8(lying + r * kStrip + j, kStrip, standing + j * kWidth + r, kWidth, 1);
    }
  }
  for (int64_t j = 0; j < least(c.cols, kStrip); ++j) {
    store(c.at + j * c.stride, load(standing + j * kWidth), first(rows));
  }
}

// The tile of `rows` rows, 1 to kRows: a table of instances, since a tile's size is known when it
// is compiled.
template <bool transposed, size_t... i>
TileOf tile_of(int64_t rows, std::index_sequence<i...>) {
  static constexpr TileOf all[] = {transposed ? transposed_tile<static_cast<int>(i) + 1>
                                              : tile<static_cast<int>(i) + 1>...};
  return all[rows - 1];
}
template <bool transposed>
TileOf tile_of(int64_t rows) {
  return tile_of<transposed>(rows, std::make_index_sequence<kRows>{});
}

/// What one of `tiles` tiles fetches of the next rows of A, so that together they fetch all.
Ahead rows_ahead(const float* a, int64_t rows, int64_t stride, int64_t tile, int64_t tiles) {
  const int64_t each = parts(rows, tiles), from = tile * each;
  return {a + from * stride, from < rows ? least(each, rows - from) : 0, stride, kLine};
}
/// The same for kRows columns of a transposed A. Their last element is fetched: the line of the
/// first is known from the columns before.
Ahead columns_ahead(const float* a, int64_t columns, int64_t depth, int64_t stride, int64_t tile,
                    int64_t tiles) {
  const int64_t steps = parts(depth, kLine), each = parts(depth, tiles * steps),
                from = tile * steps * each;
  return {a + from * stride + columns - 1, columns > 0 && from < depth ? each : 0, stride,
          each * stride};
}

/// out [depth, kStrip] = b [depth, cols] at `stride`, with zeros after the last column.
void pack_strip(const float* b, int64_t stride, int64_t depth, int64_t cols, float* out) {
  const M low = first(least(cols, kWidth)),
          high = first(cols > kWidth ? least(cols - kWidth, kWidth) : 0);
  for (int64_t k = 0; k < depth; ++k, b += stride, out += kStrip) {
    store(out, load(b, low));
    store(out + kWidth, load(b + kWidth, high));
  }
}

/// out [depth, kWidth] = a [depth, columns] at `stride`.
void pack_columns(const float* a, int64_t stride, int64_t depth, int64_t columns, float* out) {
  const M mask = first(columns);
  for (int64_t k = 0; k < depth; ++k, a += stride, out += kWidth) store(out, load(a, mask));
}

/// Whether rows are few, and fit the panel's memory over all of k.
bool few_rows(int64_t m, int64_t k) {
  const int64_t padded = round_up(m, kStrip);
  return m <= kFewRows && padded - m <= kPadding && padded * k <= kPanelCols * kDepth;
}

/// c = a b^T where few_rows(m, k) holds. Rows of b are the tile's rows, rows of a its columns.
void few_rows_product(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k,
                      float* work) {
  pack_transposed<kStrip>(a, k, m, k, 1, work);
  const int64_t strips = parts(m, kStrip);
  for (int64_t j = 0; j < n; j += kRows) {
    const int64_t rows = least(kRows, n - j), next = least(kRows, n - j - rows);
    const TileOf compute = tile_of<true>(rows);
    for (int64_t s = 0, i = 0; s < strips; ++s, i += kStrip) {
      compute({b + j * k, k, 1}, {work + i * k, kStrip}, k, {c + i * n + j, n, m - i, true},
              rows_ahead(b + (j + kRows) * k, next, k, s, strips));
    }
  }
}

template <bool a_transposed, bool b_transposed>
void product(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k,
             float* work) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    std::memset(c, 0, static_cast<size_t>(m * n) * sizeof(float));
    return;
  }

  if (!a_transposed && b_transposed && few_rows(m, k))
    return few_rows_product(a, b, c, m, n, k, work);

  // Even cuts: a chunk or panel that is much smaller than the others would waste its packing.
  const int64_t deepest = share(k, kDepth, kLine), widest = share(n, kPanelCols, kStrip);
  float *panel = work, *columns = work + deepest * widest;
  // The gradient of a weight that is larger than the cache and written in one go is not read before
  // the next reduction: its lines need not be fetched to be overwritten.
  const bool streamed = a_transposed && deepest >= k && m * n >= kStreamed && n % kStrip == 0 &&
                        reinterpret_cast<uintptr_t>(c) % (kLine * sizeof(float)) == 0;
  for (int64_t k0 = 0; k0 < k; k0 += deepest) {
    const int64_t depth = least(deepest, k - k0);
    for (int64_t j0 = 0; j0 < n; j0 += widest) {
      const int64_t cols = least(widest, n - j0), strips = parts(cols, kStrip);
      const float* source = b_transposed ? b + j0 * k + k0 : b + k0 * n + j0;
      // Few rows read whole strips in place; a strip that ends early is packed, since a tile reads
      // whole vectors of B.
      const auto packed = [&](int64_t j) {
        return b_transposed || m > kUnpackedRows || cols - j < kStrip;
      };

      if (b_transposed) {
        pack_transposed<kStrip>(source, k, cols, depth, 1, panel);
      } else {
        for (int64_t j = 0; j < cols; j += kStrip) {
          if (packed(j)) pack_strip(source + j, n, depth, cols - j, panel + j * depth);
        }
      }

      // All rows of A pass over the panel while it is in the cache.
      for (int64_t i = 0; i < m; i += kRows) {
        const int64_t rows = least(kRows, m - i), next = least(kRows, m - i - rows);
        const float* rows_at = a_transposed ? a + k0 * m + i : a + i * k + k0;
        if (a_transposed) pack_columns(rows_at, m, depth, rows, columns);
        const Left left = a_transposed ? Left{columns, 1, kWidth} : Left{rows_at, k, 1};
        const TileOf compute = tile_of<false>(rows);
        for (int64_t s = 0, j = 0; s < strips; ++s, j += kStrip) {
          compute(left, packed(j) ? Right{panel + j * depth, kStrip} : Right{source + j, n}, depth,
                  {c + i * n + j0 + j, n, cols - j, k0 == 0, streamed},
                  a_transposed ? columns_ahead(rows_at + kRows, next, depth, m, s, strips)
                               : rows_ahead(rows_at + kRows * k, next, k, s, strips));
        }
      }
    }
  }

  if (streamed) finish_streams();
}

int64_t matmul_work(int64_t m, int64_t n, int64_t k) {
  if (m == 0 || n == 0 || k == 0) return 0;
  // A panel and the packed columns of a transposed A, or all of A for few rows: what the widest
  // code path takes, or any.
  constexpr int64_t kWidestStrip = 2 * kWidestVector;
  const int64_t any =
      share(k, kDepth, kLine) * (share(n, kPanelCols, kWidestStrip) + kWidestVector);
  const int64_t padded = round_up(m, kWidestStrip) * k, most = kPanelCols * kDepth;
  const int64_t few = m <= kFewRows ? least(padded, most) : 0;
  return any > few ? any : few;
}

}  // namespace

void fill_matmul(Kernels& table) {
  table.matmul = {product<false, true>, product<false, false>, product<true, false>,
                  matmul_work,          product<false, true>,  product<false, false>};
}

}  // namespace tutti::TUTTI_ISA
