// What models in columns have in common (the MLP and the CNN). Such a model is defined in S =
// train.tensor_slices columns by cutting every layer's outputs: its units, channels or classes.
// Column c computes the c-th of S equal parts from all of the layer's inputs with its own rows of
// the weights, and the parts are gathered and joined for the next layer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/core/segment.h"

namespace tutti {

/// How many columns there are, and which one this is.
struct Columns {
  int64_t count = 1, column = 0;
};

/// The name of a column's block: "head" for column 0, "head.slice1" for column 1.
std::string column_name(const std::string& block, int64_t column);

/// Corrects the init of a part of a matrix. Glorot and He scale by the fans of the tensor that they
/// fill; a part must scale by those of the whole.
void keep_deviation(Init& init, const std::vector<int64_t>& whole,
                    const std::vector<int64_t>& part);

/// The column's part of a whole block without segments: the c-th of S parts of the first dim of
/// every parameter. Initial values keep the deviation of the whole; orthogonal ones are orthogonal
/// within a column only.
Block column_block(const Block& whole, const Columns& columns);

/// Adds the reason why `size` cannot be cut, if it cannot.
void check_cut(const std::string& what, int64_t size, int64_t columns,
               std::vector<std::string>& faults);

/// The border that a column's layer puts out if the layer's whole output is `whole`, of which `dim`
/// is cut: [B, C / S, ...], to be gathered.
Border column_part(const Border& whole, int64_t columns, size_t dim = 1);
/// The same border as the next segment reads it: [S, B, C / S, ...].
Border gathered_parts(const Border& whole, int64_t columns, size_t dim = 1);
/// The whole tensor that gathered parts make up.
at::Tensor joined_parts(const at::Tensor& gathered);

/// How the gradient of a whole tensor, of which each column holds a copy, follows from the columns'
/// own gradients of it.
enum class Whole {
  kSummed,  ///< each column brings what its own part of the next layer adds to it
  /// each column brings all of it, because they compute the same loss; so a column hands back its
  /// own part and zeros elsewhere
  kSame,
};
/// The last segment of a block: reads gathered parts of `whole` from a border named "parts" and
/// puts out the whole. No exchange follows it, so a pipeline may be cut there.
std::unique_ptr<Segment> join_segment(const Border& whole, const Columns& columns,
                                      Whole gradient = Whole::kSummed, size_t dim = 1);
/// The border that the join reads, as the column's layer puts it out.
Border joined_part(const Border& whole, const Columns& columns, size_t dim = 1);

}  // namespace tutti
