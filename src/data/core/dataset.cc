// What works on any source of records: evaluation's padded micro-batches.
#include "data/core/dataset.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <cstring>

#include "base/error.h"

namespace tutti {

uint64_t Dataset::feature(int64_t, const std::string& column) const {
  throw Error(fmt::format("the data has no column {}", column));
}

std::vector<at::Tensor> allocate(const std::vector<Border>& borders) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(borders.size());
  for (const Border& border : borders) tensors.push_back(at::empty(border.dims, border.type));
  return tensors;
}

void read_eval(const Dataset& data, const std::vector<Border>& borders, int64_t first,
               int64_t records, std::vector<at::Tensor>& tensors) {
  TUTTI_CHECK(records <= data.size(), "an evaluation over {} of {} records", records, data.size());
  if (tensors.empty()) tensors = allocate(borders);

  // An evaluation mixes nothing: the share of the other targets is 0, and they are -1 or NaN, none.
  const int64_t rows = borders.front().dims.front();

  for (size_t k = 0; k < borders.size(); ++k) {
    if (borders[k].name == "mix")
      std::memset(tensors[k].mutable_data_ptr(), 0, tensors[k].nbytes());
    if (borders[k].name == "other_targets")
      std::memset(tensors[k].mutable_data_ptr(), 0xff, tensors[k].nbytes());
  }

  // Rows past the last record are padding, since a micro-batch has a fixed shape.
  for (int64_t row = 0; row < rows; ++row) {
    if (first + row < records) {
      data.read(first + row, tensors, row);
      continue;
    }
    for (size_t k = 0; k < borders.size(); ++k) {
      // All bits set is -1 in every integer type and NaN in every floating type, which the loss
      // takes for no target; all bits clear is zero in every type.
      const size_t bytes = tensors[k].nbytes() / static_cast<size_t>(rows);
      auto* begin =
          static_cast<std::byte*>(tensors[k].mutable_data_ptr()) + static_cast<size_t>(row) * bytes;
      std::memset(begin, borders[k].name.ends_with("targets") ? 0xff : 0, bytes);
    }
  }
}

}  // namespace tutti
