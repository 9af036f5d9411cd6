// Counts pairs of bytes once, then looks the loss of each pair up.
#include "infer/baseline.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "base/error.h"
#include "base/portable_math.h"

namespace tutti {

namespace {

constexpr int64_t kBigramRecords = int64_t{1} << 18;

/// Calls visit(token, target) for every place of the first `records` records.
template <typename Visit>
void for_each_pair(const Dataset& data, int64_t records, int64_t context, Visit visit) {
  const std::vector<at::Tensor> row = {at::empty({1, context}, at::kLong),
                                       at::empty({1, context}, at::kLong)};
  const auto* tokens = row[0].const_data_ptr<int64_t>();
  const auto* targets = row[1].const_data_ptr<int64_t>();
  for (int64_t record = 0; record < records; ++record) {
    data.read(record, row, 0);
    for (int64_t i = 0; i < context; ++i) {
      // Both must be bytes; one comparison of their bits is enough.
      if ((tokens[i] | targets[i]) >> 8 != 0)
        throw Error("a bigram model of bytes met a value above 255");
      visit(static_cast<size_t>(tokens[i]), static_cast<size_t>(targets[i]));
    }
  }
}

}  // namespace

double bigram_loss(const Dataset& train, const Dataset& held_out, int64_t context) {
  if (train.size() == 0 || held_out.size() == 0)
    throw Error("a bigram model needs training and held-out records");

  // Every pair is counted once more than it occurs (add-one), so that none has probability zero.
  constexpr size_t kBytes = 256;
  std::vector<double> pairs(kBytes * kBytes, 1), tokens(kBytes, kBytes);
  for_each_pair(train, std::min(train.size(), kBigramRecords), context,
                [&](size_t token, size_t target) {
                  pairs[token * kBytes + target] += 1;
                  tokens[token] += 1;
                });

  // The loss of each pair is computed once, not per place of the text.
  std::vector<double> loss(kBytes * kBytes);
  for (size_t i = 0; i < loss.size(); ++i) loss[i] = -portable::log(pairs[i] / tokens[i / kBytes]);
  double sum = 0;
  for_each_pair(held_out, held_out.size(), context,
                [&](size_t token, size_t target) { sum += loss[token * kBytes + target]; });
  return sum / (static_cast<double>(held_out.size()) * static_cast<double>(context));
}

}  // namespace tutti
