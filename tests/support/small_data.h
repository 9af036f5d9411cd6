// Small files of data, made by keyed draws, for tests that run the command on them.
#pragma once

#include <string>
#include <vector>

#include "base/philox.h"
#include "support/command.h"

namespace tutti::testing_support {

inline uint64_t draw_below(uint64_t stream, uint64_t i, uint64_t n) {
  return philox_below({2024, Purpose::kTest, stream, 0}, i, n);
}

/// A .npy file of bytes.
inline std::string npy_bytes(const std::string& shape, const std::string& values) {
  const std::string header =
      "{'descr': '|u1', 'fortran_order': False, 'shape': (" + shape + "), }\n";
  std::string bytes = "\x93NUMPY\1";
  bytes += {'\0', static_cast<char>(header.size()), '\0'};
  return bytes + header + values;
}

/// Images of side x side bytes whose brightest column says their class, and their labels: NAME.npy,
/// NAME-labels.npy. One class is much more frequent than the others. Returns the settings that name
/// them.
inline Arguments write_images(const TempFolder& folder, const std::string& name, int records,
                              int side, int classes) {
  std::string images, labels;
  for (int r = 0; r < records; ++r) {
    const auto drawn = static_cast<int>(
        draw_below(1, static_cast<uint64_t>(r), static_cast<uint64_t>(3 * classes)));
    const int label = std::max(0, drawn - 2 * classes);
    labels += static_cast<char>(label);
    for (int i = 0; i < side * side; ++i) {
      const auto noise = draw_below(2, static_cast<uint64_t>(r * side * side + i), 90);
      images += static_cast<char>(noise + (i % side == label ? 150 : 0));
    }
  }
  const std::string count = std::to_string(records), edge = std::to_string(side);
  const std::string path =
      folder.write(name + ".npy", npy_bytes(count + ", 1, " + edge + ", " + edge, images));
  return {"data.path=" + path,
          "data.labels=" + folder.write(name + "-labels.npy", npy_bytes(count + ",", labels))};
}

/// Rows with a number, a colour, a city and what follows from them. Returns the path.
inline std::string write_table(const TempFolder& folder, const std::string& name, int rows) {
  std::string text = "size,colour,city,share,weight,kind\n";
  const char* colours[] = {"red", "green", "blue"};
  for (int r = 0; r < rows; ++r) {
    const auto row = static_cast<uint64_t>(r);
    const uint64_t size = draw_below(3, row, 1000), colour = draw_below(4, row, 3),
                   city = draw_below(5, row, 7);
    text += fmt::format("{}.{:02},{},town {},{},{},{}\n", size / 100, size % 100, colours[colour],
                        city, size % 2, 1 + city, size > 500 || colour == 1 ? "yes" : "no");
  }
  return folder.write(name, text);
}

}  // namespace tutti::testing_support
