// Models that are defined in S = train.tensor_slices columns by cutting every layer's outputs (its
// units, channels, classes): column c computes the c-th of S equal parts from all of its inputs,
// with its own rows of the weights, and the parts are gathered and joined for the next layer. What
// is shared by the MLP and the CNN is here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/core/segment.h"

namespace tutti {

struct Columns {
  int64_t slices = 1, column = 0;
};

/// "head" of column 0, "head.slice1" of column 1.
std::string column_name(const std::string& block, int64_t column);

/// For a part of a matrix: Glorot and He go by the fans of what they fill, and are to go by those
/// of the whole.
void keep_deviation(Init& init, const std::vector<int64_t>& whole,
                    const std::vector<int64_t>& part);

/// The column's part of a whole block without segments: of every parameter the c-th of S parts of
/// its first dim. Initial values keep the deviation of the whole (Glorot's goes by the fans);
/// orthogonal ones are so within a column.
Block column_block(const Block& whole, const Columns& columns);

/// Adds the reason why `size` cannot be cut, if it cannot.
void check_cut(const std::string& what, int64_t size, int64_t slices,
               std::vector<std::string>& faults);

/// The border behind a column's layer whose whole output is `whole` [B, C, ...]: [B, C / S, ...],
/// gathered.
Border column_part(const Border& whole, int64_t slices);
/// The same as the next segment reads it: [S, B, C / S, ...].
Border gathered_parts(const Border& whole, int64_t slices);
/// Of gathered parts the whole.
at::Tensor joined_parts(const at::Tensor& gathered);

/// How the columns' gradients of a whole tensor that each of them holds make up the gradient.
enum class Whole {
  kSummed,  ///< each column brings what its own part of the next layer adds to it
  /// each brings all of it: they compute the same loss. A column hands back its own part, and zeros
  kSame,
};
/// Ends a block: reads gathered parts of `whole`, from a border named "parts", and puts it out.
/// Behind it nothing is exchanged, so a pipeline may be cut there.
std::unique_ptr<Segment> join_segment(const Border& whole, const Columns& columns,
                                      Whole gradient = Whole::kSummed);
/// The border that it reads, as the column's layer puts it out.
Border joined_part(const Border& whole, const Columns& columns);

}  // namespace tutti
