// Reads PNG and JPEG files as planes of bytes, by libpng and libjpeg.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

struct Image {
  int64_t channels = 0, height = 0, width = 0;
  std::vector<uint8_t> planes;  ///< [channels, height, width]
};

/// Decodes the `bytes` of a PNG or JPEG file as grey (1 channel) or as red, green and blue (3);
/// transparency is laid on black. Throws Error naming the path for another format, or a file that
/// is damaged or truncated.
Image decode_image(const std::string& bytes, const std::string& path, int64_t channels);

/// Resizes bilinearly, as torch's interpolate does with align_corners = false, and rounds to the
/// nearest byte.
Image resized(const Image& image, int64_t height, int64_t width);

}  // namespace tutti
