// NumPy's .npy files: a magic word, a version, the length of a header that is a Python dictionary,
// the header, the values.
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "data/core/sources.h"
#include "data/images/arrays.h"

namespace tutti {
namespace {

constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicSize = 6;

/// The text after 'key': in the header's dictionary, up to the end of its value.
std::string field(const std::string& header, const std::string& key, const std::string& path) {
  const size_t at = header.find("'" + key + "':");
  if (at == std::string::npos) throw Error(fmt::format("{}: its header has no {}", path, key));
  size_t begin = header.find_first_not_of(' ', at + key.size() + 3);
  if (begin == std::string::npos) begin = header.size();
  const size_t end =
      header[begin] == '(' ? header.find(')', begin) : header.find_first_of(",}", begin);
  return header.substr(begin, end == std::string::npos ? end : end - begin);
}

/// The numbers in a shape such as "(60000, 28, 28".
std::vector<int64_t> dims_of(const std::string& shape, const std::string& path) {
  if (shape.find('-') != std::string::npos)
    throw Error(fmt::format("{}: its shape is {})", path, shape));
  std::vector<int64_t> dims;
  for (size_t i = 0; i < shape.size();) {
    if (std::isdigit(static_cast<unsigned char>(shape[i])) == 0) {
      ++i;
      continue;
    }
    size_t used = 0;
    dims.push_back(std::stoll(shape.substr(i, 18), &used));
    i += used;
  }
  if (dims.empty()) throw Error(fmt::format("{}: a single value, not an array of records", path));
  return dims;
}

/// Reads values byte by byte, since the file promises no alignment.
template <typename From, typename To>
std::vector<To> converted(const char* bytes, size_t count) {
  std::vector<To> values(count);
  for (size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, bytes + i * sizeof(From), sizeof(From));
    values[i] = static_cast<To>(value);
  }
  return values;
}

/// A type of values by its name in the header, and what it becomes.
struct Kind {
  const char* name;
  size_t bytes;
  void (*fill)(Array& array, const char* bytes, size_t count);
};

template <typename From, typename To>
void fill(Array& array, const char* bytes, size_t count) {
  array.values = converted<From, To>(bytes, count);
}

constexpr Kind kKinds[] = {
    {"'|u1'", 1, fill<uint8_t, uint8_t>},  {"'|b1'", 1, fill<uint8_t, uint8_t>},
    {"'<f4'", 4, fill<float, float>},      {"'<f8'", 8, fill<double, float>},
    {"'|i1'", 1, fill<int8_t, int64_t>},   {"'<i2'", 2, fill<int16_t, int64_t>},
    {"'<i4'", 4, fill<int32_t, int64_t>},  {"'<i8'", 8, fill<int64_t, int64_t>},
    {"'<u2'", 2, fill<uint16_t, int64_t>}, {"'<u4'", 4, fill<uint32_t, int64_t>},
    {"'<u8'", 8, fill<uint64_t, int64_t>},
};

}  // namespace

Array read_npy(const std::string& path) {
  const std::string bytes = read_unchanged(path);
  if (bytes.size() < 12 || bytes.compare(0, kMagicSize, kMagic, kMagicSize) != 0) {
    throw Error(fmt::format("{}: not a .npy file", path));
  }

  // Version 1 has two bytes of length, the later ones four; all are little-endian.
  const int version = bytes[6];
  size_t length = 0;
  const size_t start = version == 1 ? 10 : 12;
  for (size_t i = start; i-- > 8;) length = length << 8 | static_cast<uint8_t>(bytes[i]);
  if (version < 1 || version > 3) throw Error(fmt::format("{}: .npy of version {}", path, version));
  if (length > bytes.size() - start) throw Error(fmt::format("{}: truncated in its header", path));
  const std::string header = bytes.substr(start, length);
  if (field(header, "fortran_order", path) != "False") {
    throw Error(fmt::format("{}: in Fortran's order; save it by numpy.ascontiguousarray", path));
  }

  // A count that overflows is made too large for any file.
  Array array;
  array.path = path;
  array.dims = dims_of(field(header, "shape", path), path);
  uint64_t count = 1;
  for (int64_t dim : array.dims) {
    if (__builtin_mul_overflow(count, static_cast<uint64_t>(dim), &count)) count = UINT64_MAX / 16;
  }
  const std::string type = field(header, "descr", path);

  // The number of bytes must be exactly what shape and type say.
  for (const Kind& kind : kKinds) {
    if (type != kind.name) continue;
    const size_t left = bytes.size() - start - length;
    if (left / kind.bytes != count || left % kind.bytes != 0) {
      throw Error(
          fmt::format("{}: {} bytes of values where its header says {} values of {} bytes: "
                      "truncated or damaged",
                      path, left, count, kind.bytes));
    }
    kind.fill(array, bytes.data() + start + length, count);
    return array;
  }
  throw Error(fmt::format(
      "{}: values of type {}; whole numbers, f4 and f8 (little-endian) are read", path, type));
}

void write_npy(const std::string& path, const std::vector<int64_t>& dims,
               std::span<const float> values) {
  std::string shape;
  for (int64_t dim : dims) shape += std::to_string(dim) + ",";
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + "), }";

  // The format wants the values to begin at a multiple of 64 bytes.
  constexpr size_t kStart = 10;
  while ((kStart + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string bytes(kMagic, kMagicSize);
  bytes +=
      {'\1', '\0', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  write_output(path, bytes);
}

}  // namespace tutti
