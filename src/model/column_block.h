// Models that are defined in S = train.tensor_slices columns by cutting every layer's outputs (its units, channels,
// classes): column c computes the c-th of S equal parts from all of its inputs, with its own rows of the weights, and
// the parts are gathered for the next layer. What is shared by the MLP and the CNN is here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/segment.h"

namespace tutti {

struct Columns {
  int64_t slices = 1, column = 0;
};

/// "head" of column 0, "head.slice1" of column 1.
std::string column_name(const std::string& block, int64_t column);

/// The column's part of a whole block without segments: of every parameter the c-th of S parts of its first dim.
/// Initial values keep the deviation of the whole (Glorot's goes by the fans); orthogonal ones are so within a column.
Block column_block(const Block& whole, const Columns& columns);

/// Adds the reason why `size` cannot be cut, if it cannot.
void check_cut(const std::string& what, int64_t size, int64_t slices, std::vector<std::string>& faults);

/// The border behind a column's layer whose whole output is `whole` [B, C, ...]: [B, C / S, ...], gathered.
Border column_part(const Border& whole, int64_t slices);
/// The same as the next segment reads it: [S, B, C / S, ...].
Border gathered_parts(const Border& whole, int64_t slices);
/// Of gathered parts [S, B, C / S, ...] the whole [B, C, ...].
at::Tensor joined_parts(const at::Tensor& gathered);

/// Reads gathered parts of `whole` as `parts` and puts it out, for a loss that every column computes. Each computes the
/// same gradient; since those of gathered tensors are summed over the columns, a column hands back its own part of it
/// and zeros.
std::unique_ptr<Segment> join_segment(const std::string& parts, const Border& whole, const Columns& columns);

}  // namespace tutti
