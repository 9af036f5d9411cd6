// The ends of the wide-and-deep model by hand, for the CPU: rows of tables are read and added in
// the order of records and fields.
#pragma once

#include <memory>
#include <vector>

#include "model/core/segment.h"

namespace tutti {

/// Where the joint table of all fields' categories has those of each field, and where pairs of
/// categories are among the hashed weights.
struct FieldRows {
  std::vector<int64_t> starts;  ///< of each field
  int64_t rows = 0;
  /// The place of a pair of the table's rows, by Fibonacci hashing.
  static int64_t cross(int64_t a, int64_t b);
  static constexpr uint64_t kCrossFactor = 0x9E3779B97F4A7C15;  ///< 2^64 by the golden ratio
};

/// numbers [B, n], categories [B, m] -> [B, n + m e]: the numbers and the m embeddings of e floats.
/// The parameter is the table [rows, e].
std::unique_ptr<Segment> make_fields_embed(const FieldRows& fields, const Border& numbers,
                                           const Border& categories, const Border& out);
/// hidden, numbers, categories -> logits [B, k]: a linear layer of `hidden` plus the wide part. The
/// parameters are its weight and bias, a weight for each category and each place of a pair [.., k],
/// and, if there are numbers, theirs [k, n].
std::unique_ptr<Segment> make_fields_head(const FieldRows& fields, const Kernels& kernels,
                                          const Border& hidden, const Border& numbers,
                                          const Border& categories, const Border& out);

}  // namespace tutti
