// Keyed dropout, fused into what stands next to it (bias and residual, embedding, bias gradients).
// Masks are drawn again in backward, never stored. Where the draws of a mask come from:
//   - A row of a sample is cut into groups of 64 columns. Group g of row r takes 16 Philox blocks,
//     from block 16 (r ceil(cols / 64) + g) on, of the stream of (seed, step, block, site, sample).
//   - Column 64 g + 16 j + l of the row is word j of the l-th of these blocks. So whole vectors of
//     words come out in the order of the columns, and nothing has to be transposed.
#include "base/philox.h"
#include "base/simd/vec.h"
#include "tensor/cpu/kernel_tables.h"

namespace tutti::TUTTI_ISA {

namespace {

constexpr int kGroup = 64, kBlocks = 16;

inline F keep_or_zero(I words, I threshold, F scale) {
  return select(at_least(words, threshold), scale, zero());
}

/// The factors (0 or 1 / (1 - rate)) of the rows of an array, group by group. Rows are entered
/// in order.
class Masks {
 public:
  Masks(const Dropout& dropout, int64_t cols)
      : dropout_(dropout),
        groups_(((dropout.all_columns == 0 ? cols : dropout.all_columns) + kGroup - 1) / kGroup),
        threshold_(static_cast<uint32_t>(dropout.rate * 0x1p32)),
        scale_(static_cast<float>(1 / (1 - dropout.rate))) {}

  void enter_row(int64_t array_row) {
    const int64_t row = dropout_.first_row + array_row;
    row_ = row % dropout_.rows_per_sample;

    // The stream is the sample's, so it changes at a sample's first row, or where the array begins
    // in the middle of one.
    if (row_ != 0 && array_row != 0) return;
    const uint64_t sample =
        static_cast<uint64_t>(dropout_.first_sample + row / dropout_.rows_per_sample);
    const uint64_t place = uint64_t{dropout_.block} << 44 | uint64_t{dropout_.site} << 40 | sample;
    stream_ = philox_stream({dropout_.seed, Purpose::kDropout, dropout_.step, place});
  }

  void factors(int64_t group, float* out) const {
    // A multiple of kBlocks: adding a lane's number carries nothing out of the low word.
    const uint64_t index = static_cast<uint64_t>(row_ * groups_ + group) * kBlocks;
    for (int part = 0; part < kBlocks; part += kWidth) {
      // One lane is one block: words 0 and 1 of the counter name the stream, 2 and 3 the block.
      I c0 = set_words(stream_.counter[0]), c1 = set_words(stream_.counter[1]);
      I c2 = plus(set_words(static_cast<uint32_t>(index) + static_cast<uint32_t>(part)),
                  lane_numbers());
      I c3 = set_words(static_cast<uint32_t>(index >> 32));

      // The ten rounds of Philox4x32 with their published constants, as philox_raw has them.
      uint32_t k0 = stream_.key[0], k1 = stream_.key[1];
      for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        I lo0, hi0, lo1, hi1;
        products(c0, set_words(0xD2511F53u), lo0, hi0);
        products(c2, set_words(0xCD9E8D57u), lo1, hi1);
        c0 = exclusive_or(exclusive_or(hi1, c1), set_words(k0));
        c1 = lo1;
        c2 = exclusive_or(exclusive_or(hi0, c3), set_words(k1));
        c3 = lo0;
      }

      // An element is kept where its word is at least rate 2^32.
      const I threshold = set_words(threshold_);
      const F scale = set(scale_);
      store(out + part, keep_or_zero(c0, threshold, scale));
      store(out + 16 + part, keep_or_zero(c1, threshold, scale));
      store(out + 32 + part, keep_or_zero(c2, threshold, scale));
      store(out + 48 + part, keep_or_zero(c3, threshold, scale));
    }
  }

 private:
  const Dropout& dropout_;
  int64_t groups_, row_ = 0;
  uint32_t threshold_;
  float scale_;
  PhiloxStream stream_{};
};

/// Calls body(row, column, lanes, factor) over the array. Factors are made for whole groups, so
/// their tail needs no mask. An array that is some columns of a larger one may begin within a group,
/// and its last vector may reach beyond one.
template <typename Body>
inline __attribute__((always_inline)) void masked(const Dropout& dropout, int64_t rows,
                                                  int64_t cols, Body&& body) {
  Masks masks(dropout, cols);
  const int64_t first = dropout.first_column, end = first + cols;
  alignas(64) float factor[kGroup + kLanes] = {};
  for (int64_t r = 0; r < rows; ++r) {
    masks.enter_row(r);
    for (int64_t c = first, next; c < end; c = next) {
      const int64_t group = c / kGroup, inside = c % kGroup;
      next = (group + 1) * kGroup < end ? (group + 1) * kGroup : end;
      masks.factors(group, factor);
      for_vectors(next - c, [&](int64_t i, auto lanes) {
        body(r, c - first + i, lanes, load(factor + inside + i));
      });
    }
  }
}

bool off(const Dropout* dropout) { return dropout == nullptr || dropout->rate == 0; }

void bias_residual(const float* y, const float* bias, const float* x, float* out, int64_t rows,
                   int64_t cols, const Dropout* dropout) {
  if (off(dropout)) {
    for (int64_t r = 0; r < rows; ++r, y += cols, x += cols, out += cols) {
      for_vectors(cols, [&](int64_t c, auto lanes) {
        lanes.store(out + c,
                    lanes.load(x + c) + (lanes.load(y + c) + load_or_zero(bias, c, lanes)));
      });
    }
    return;
  }

  masked(*dropout, rows, cols, [&](int64_t r, int64_t c, auto lanes, F factor) {
    const int64_t i = r * cols + c;
    lanes.store(out + i,
                fma(lanes.load(y + i) + load_or_zero(bias, c, lanes), factor, lanes.load(x + i)));
  });
}

void dropout_backward(const float* dy, float* out, float* sums, int64_t rows, int64_t cols,
                      const Dropout* dropout) {
  clear(sums, cols);
  if (off(dropout)) {
    if (sums == nullptr) return;
    for (int64_t r = 0; r < rows; ++r, dy += cols) {
      for_vectors(cols, [&](int64_t c, auto lanes) {
        lanes.store(sums + c, lanes.load(sums + c) + lanes.load(dy + c));
      });
    }
    return;
  }

  masked(*dropout, rows, cols, [&](int64_t r, int64_t c, auto lanes, F factor) {
    const F d = lanes.load(dy + r * cols + c) * factor;
    lanes.store(out + r * cols + c, d);
    add_to(sums, c, d, lanes);
  });
}

void embed(const int64_t* tokens, const float* token, const float* position, float* out,
           int64_t rows, int64_t length, int64_t cols, const Dropout* dropout) {
  if (off(dropout)) {
    for (int64_t r = 0; r < rows; ++r) {
      const float *t = token + tokens[r] * cols,
                  *p = position == nullptr ? nullptr : position + r % length * cols;
      for_vectors(cols, [&](int64_t c, auto lanes) {
        lanes.store(out + r * cols + c, lanes.load(t + c) + load_or_zero(p, c, lanes));
      });
    }
    return;
  }

  masked(*dropout, rows, cols, [&](int64_t r, int64_t c, auto lanes, F factor) {
    const F sum = lanes.load(token + tokens[r] * cols + c) +
                  load_or_zero(position, r % length * cols + c, lanes);
    lanes.store(out + r * cols + c, sum * factor);
  });
}

void embed_backward(const int64_t* tokens, const float* dout, float* dtoken, float* dposition,
                    int64_t rows, int64_t length, int64_t vocab, int64_t cols,
                    const Dropout* dropout) {
  clear(dtoken, vocab * cols);
  clear(dposition, length * cols);

  // Rows come in order, so every element of either table is summed in the order of the rows.
  const auto add = [&](int64_t r, int64_t c, auto lanes, F d) {
    add_to(dtoken, tokens[r] * cols + c, d, lanes);
    add_to(dposition, r % length * cols + c, d, lanes);
  };
  if (off(dropout)) {
    for (int64_t r = 0; r < rows; ++r) {
      for_vectors(
          cols, [&](int64_t c, auto lanes) { add(r, c, lanes, lanes.load(dout + r * cols + c)); });
    }
    return;
  }

  masked(*dropout, rows, cols, [&](int64_t r, int64_t c, auto lanes, F factor) {
    add(r, c, lanes, lanes.load(dout + r * cols + c) * factor);
  });
}

void positions(const float* x, const float* position, float* out, int64_t rows, int64_t first_row,
               int64_t length, int64_t cols, const Dropout* dropout) {
  const auto sum = [&](int64_t r, int64_t c, auto lanes) {
    return lanes.load(x + r * cols + c) +
           load_or_zero(position, (first_row + r) % length * cols + c, lanes);
  };
  if (off(dropout)) {
    for (int64_t r = 0; r < rows; ++r)
      for_vectors(
          cols, [&](int64_t c, auto lanes) { lanes.store(out + r * cols + c, sum(r, c, lanes)); });
    return;
  }

  masked(*dropout, rows, cols, [&](int64_t r, int64_t c, auto lanes, F factor) {
    lanes.store(out + r * cols + c, sum(r, c, lanes) * factor);
  });
}

void positions_backward(const float* dout, float* dx, float* dposition, int64_t rows,
                        int64_t first_row, int64_t length, int64_t cols, const Dropout* dropout) {
  clear(dposition, length * cols);
  const auto leave = [&](int64_t r, int64_t c, auto lanes, F d) {
    lanes.store(dx + r * cols + c, d);
    add_to(dposition, (first_row + r) % length * cols + c, d, lanes);
  };
  if (off(dropout)) {
    for (int64_t r = 0; r < rows; ++r)
      for_vectors(cols, [&](int64_t c, auto lanes) {
        leave(r, c, lanes, lanes.load(dout + r * cols + c));
      });
    return;
  }

  masked(*dropout, rows, cols, [&](int64_t r, int64_t c, auto lanes, F factor) {
    leave(r, c, lanes, lanes.load(dout + r * cols + c) * factor);
  });
}

}  // namespace

void fill_dropout(Kernels& table) {
  table.bias_residual = bias_residual;
  table.dropout_backward = dropout_backward;
  table.embed = embed;
  table.embed_backward = embed_backward;
  table.vocabulary.positions = positions;
  table.vocabulary.positions_backward = positions_backward;
}

}  // namespace tutti::TUTTI_ISA
