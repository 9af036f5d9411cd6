// Embedding and softmax cross-entropy over one slice of a vocabulary. The loss of a row is joined
// from the slices' own maxima and sums in the order of the slices, in float64, so every slice's
// owner has the same bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/portable_math.h"
#include "base/simd/vec.h"
#include "tensor/cpu/kernel_tables.h"

namespace tutti::TUTTI_ISA {

namespace {

/// Per row: the largest logit, the sum of exponentials relative to it, the target's logit.
constexpr int64_t kStatistics = 3;

bool inside(int64_t id, int64_t first, int64_t count) { return id >= first && id < first + count; }

void embed(const int64_t* tokens, const float* table, float* out, int64_t rows, int64_t cols,
           int64_t first, int64_t count) {
  for (int64_t r = 0; r < rows; ++r, out += cols) {
    if (inside(tokens[r], first, count)) {
      std::memcpy(out, table + (tokens[r] - first) * cols,
                  static_cast<size_t>(cols) * sizeof(float));
    } else {
      clear(out, cols);
    }
  }
}

void embed_backward(const int64_t* tokens, const float* dout, float* dtable, int64_t rows,
                    int64_t cols, int64_t first, int64_t count) {
  clear(dtable, count * cols);
  for (int64_t r = 0; r < rows; ++r, dout += cols) {
    if (!inside(tokens[r], first, count)) continue;
    float* sums = dtable + (tokens[r] - first) * cols;
    for_vectors(cols, [&](int64_t c, auto lanes) { add_to(sums, c, lanes.load(dout + c), lanes); });
  }
}

void statistics(const float* logits, const int64_t* targets, float* statistics, int64_t rows,
                int64_t first, int64_t count) {
  const F lowest = set(-std::numeric_limits<float>::infinity());
  for (int64_t r = 0; r < rows; ++r, logits += count, statistics += kStatistics) {
    Lanes top = lanes_of(lowest);
    for_lanes(count, [&](int64_t c, auto lanes, int part) {
      top.part[part] = max(top.part[part], lanes.keep(lanes.load(logits + c), lowest));
    });
    const float m = largest(top);

    const F vm = set(m);
    Lanes s = lanes_of(zero());
    for_lanes(count, [&](int64_t c, auto lanes, int part) {
      s.part[part] = s.part[part] + lanes.keep(exp(lanes.load(logits + c) - vm));
    });

    // One slice has the target; the zeros of the others leave it as it is in their sum.
    statistics[0] = m;
    statistics[1] = sum(s);
    statistics[2] = inside(targets[r], first, count) ? logits[targets[r] - first] : 0;
  }
}

void cross_entropy(const float* statistics, const int64_t* targets, float* lse, double* result,
                   int64_t rows, int64_t slices) {
  double total = 0;
  int64_t counted = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const auto of = [&](int64_t slice, int64_t which) {
      return static_cast<double>(statistics[(slice * rows + r) * kStatistics + which]);
    };

    // Each slice's sum is relative to its own largest logit; all are brought to the common one.
    double top = of(0, 0);
    for (int64_t s = 1; s < slices; ++s) top = std::max(top, of(s, 0));
    double sum = 0, target = 0;
    for (int64_t s = 0; s < slices; ++s) {
      sum += of(s, 1) * portable::exp(of(s, 0) - top);
      target += of(s, 2);
    }

    // lse is kept for every row, the loss counts those with a target.
    const double row = top + portable::log(sum);
    lse[r] = static_cast<float>(row);
    if (targets[r] < 0) continue;
    total += row - target;
    ++counted;
  }
  result[0] = total;
  result[1] = static_cast<double>(counted);
}

/// The CPU's float32 needs no loss scale.
void cross_entropy_backward(const float* logits, const int64_t* targets, const float* lse,
                            const double*, float* dlogits, int64_t rows, int64_t first,
                            int64_t count) {
  for (int64_t r = 0; r < rows; ++r, logits += count, dlogits += count) {
    if (targets[r] < 0) {
      clear(dlogits, count);
      continue;
    }

    // The gradient is the probability, less one at the target, which one slice has.
    const F vl = set(lse[r]);
    for_vectors(count, [&](int64_t c, auto lanes) {
      lanes.store(dlogits + c, exp(lanes.load(logits + c) - vl));
    });
    if (inside(targets[r], first, count)) dlogits[targets[r] - first] -= 1;
  }
}

}  // namespace

void fill_vocabulary(Kernels& table) {
  table.vocabulary.embed = embed;
  table.vocabulary.embed_backward = embed_backward;
  table.vocabulary.statistics = statistics;
  table.vocabulary.cross_entropy = cross_entropy;
  table.vocabulary.cross_entropy_backward = cross_entropy_backward;
}

}  // namespace tutti::TUTTI_ISA
