// PNG and JPEG files as planes of bytes, by libpng and libjpeg.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

struct Image {
  int64_t channels = 0, height = 0, width = 0;
  std::vector<uint8_t> planes;  ///< [channels, height, width]
};

/// `bytes` of a PNG or JPEG file, as grey (1) or red, green and blue (3); transparency is laid on
/// black. Throws Error naming the path: another format, damaged, truncated.
Image decode_image(const std::string& bytes, const std::string& path, int64_t channels);

/// Bilinear, as torch's interpolate with align_corners = false, rounded to the nearest.
Image resized(const Image& image, int64_t height, int64_t width);

}  // namespace tutti
