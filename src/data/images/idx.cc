// IDX, the format of MNIST: two zero bytes, a type, the number of dimensions, the dimensions
// (big-endian), the values.
#include "base/error.h"
#include "data/core/sources.h"
#include "data/images/arrays.h"

namespace tutti {

Array read_idx(const std::string& path) {
  const std::string bytes = read_gz(path);
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  if (bytes.size() < 8 || at(0) != 0 || at(1) != 0 || at(3) == 0)
    throw Error(fmt::format("{}: not an IDX file", path));

  // MNIST and its relatives have nothing but bytes. Other types are refused, not misread.
  constexpr uint8_t kUnsignedByte = 8;
  if (at(2) != kUnsignedByte) {
    throw Error(fmt::format("{}: an IDX file of type {:#04x}; only unsigned bytes (0x08) are read",
                            path, at(2)));
  }

  // The size is checked against the header before anything is taken. A product that overflows is
  // larger than any file.
  Array array;
  array.path = path;
  const size_t header = 4 + size_t{4} * at(3);
  uint64_t values = 1;
  for (size_t d = 0; d < at(3) && header <= bytes.size(); ++d) {
    uint32_t dim = 0;
    for (size_t b = 0; b < 4; ++b) dim = dim << 8 | at(4 + 4 * d + b);
    array.dims.push_back(dim);
    if (__builtin_mul_overflow(values, uint64_t{dim}, &values)) values = UINT64_MAX;
  }
  if (header > bytes.size() || bytes.size() - header != values) {
    throw Error(fmt::format("{}: {} bytes of values where its header says {}: truncated or damaged",
                            path, bytes.size() - std::min(header, bytes.size()), values));
  }
  array.values = std::vector<uint8_t>(bytes.begin() + static_cast<ptrdiff_t>(header), bytes.end());
  return array;
}

}  // namespace tutti
