// Records that are stored in memory as one array: IDX images, NumPy arrays.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "data/core/dataset.h"
#include "data/images/scaling.h"

namespace tutti {

/// One array of a file, [records, ...]: bytes (uint8), floats, or whole numbers (int64).
struct Array {
  std::string path;
  std::vector<int64_t> dims;
  std::variant<std::vector<uint8_t>, std::vector<float>, std::vector<int64_t>> values;
  int64_t records() const { return dims.empty() ? 0 : dims[0]; }
  int64_t row() const;  ///< number of values of one record
};

/// Reads an IDX file of unsigned bytes, plain or gzip. Throws Error naming the file if it is not
/// IDX, of another type, or truncated.
Array read_idx(const std::string& path);
/// Reads a .npy file (versions 1 to 3) in C order: u1 stays bytes; f4 and f8 become floats; whole
/// numbers become int64. Throws Error naming the file if it is not .npy, of another type or order,
/// or truncated.
Array read_npy(const std::string& path);
/// Writes a .npy file of float32.
void write_npy(const std::string& path, const std::vector<int64_t>& dims,
               std::span<const float> values);

/// Makes records of arrays. A float tensor is filled with scaled values, channel by channel
/// (`scaling` has one entry, or one per channel); a tensor of the array's own type gets the values
/// as they are. `labels` may be null (all targets are 0), whole numbers or floats.
std::shared_ptr<const Dataset> make_arrays(std::shared_ptr<const Array> values,
                                           std::shared_ptr<const Array> labels,
                                           std::vector<Scaling> scaling);

/// Factor and shift of every channel for data.scale, from the training records. Collective over the
/// group. The sums are exact, so the result is the same for every size of the group. `lines` say
/// what was found.
std::vector<Scaling> scaling_of(ValueScale scale, const Array& values, int64_t channels,
                                const std::vector<int64_t>& records, const DataGroup& group,
                                std::vector<std::string>& lines);

}  // namespace tutti
