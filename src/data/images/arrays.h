// Records that lie in memory as one array: IDX images, NumPy arrays.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "data/core/dataset.h"
#include "data/images/scaling.h"

namespace tutti {

/// One array of a file: bytes (uint8) or floats, [records, ...].
struct Array {
  std::string path;
  std::vector<int64_t> dims;
  std::variant<std::vector<uint8_t>, std::vector<float>, std::vector<int64_t>> values;
  int64_t records() const { return dims.empty() ? 0 : dims[0]; }
  int64_t row() const;  ///< values of one record
};

/// An IDX file of unsigned bytes, plain or gzip. Throws Error naming the file: not IDX, another
/// type, truncated.
Array read_idx(const std::string& path);
/// A .npy file (versions 1 to 3) in C order: u1 stays bytes; f4 and f8 become floats; whole numbers
/// become int64. Throws Error naming the file: not .npy, another type or order, truncated.
Array read_npy(const std::string& path);
/// A .npy file of float32.
void write_npy(const std::string& path, const std::vector<int64_t>& dims,
               std::span<const float> values);

/// Fills a float tensor with scaled values (channel by channel, `scaling` has one or as many
/// entries as channels), or a tensor of the array's own type with the values as they are. `labels`
/// may be empty (all targets are 0), whole numbers or floats.
std::shared_ptr<const Dataset> make_arrays(std::shared_ptr<const Array> values,
                                           std::shared_ptr<const Array> labels,
                                           std::vector<Scaling> scaling);

/// Factor and shift of every channel for data.scale, from the training records. Collective over the
/// group; the sums are exact, so the result is the same for every size of it. The lines say what
/// was found.
std::vector<Scaling> scaling_of(ValueScale scale, const Array& values, int64_t channels,
                                const std::vector<int64_t>& records, const DataGroup& group,
                                std::vector<std::string>& lines);

}  // namespace tutti
