// Decodes images by libpng and libjpeg. Files come from users, so nothing that a header claims is
// believed before it was checked.
#include "data/images/image_file.h"

#include <png.h>
#include <setjmp.h>
#include <stdio.h>
// jpeglib.h needs stdio.h before it
#include <jpeglib.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace tutti {
namespace {

constexpr int64_t kMostPixels = int64_t{1} << 28;  // a header that claims more is not believed

// Turns rows of pixels, as the libraries write them, into a plane per channel.
Image from_rows(const std::vector<uint8_t>& rows, int64_t channels, int64_t height, int64_t width) {
  Image image{channels, height, width, std::vector<uint8_t>(rows.size())};
  const int64_t plane = height * width;
  for (int64_t i = 0; i < plane; ++i)
    for (int64_t c = 0; c < channels; ++c)
      image.planes[static_cast<size_t>(c * plane + i)] =
          rows[static_cast<size_t>(i * channels + c)];
  return image;
}

Image decode_png(const std::string& bytes, const std::string& path, int64_t channels) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  const auto fail = [&] {
    const std::string reason = png.message;
    png_image_free(&png);
    throw Error(fmt::format("{}: damaged PNG: {}", path, reason));
  };
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) == 0) fail();

  // A small file may claim a huge image, whose memory would be taken before a byte is decoded.
  if (int64_t{png.width} * png.height > kMostPixels) {
    std::snprintf(png.message, sizeof png.message, "%u x %u pixels are too many", png.width,
                  png.height);
    fail();
  }

  // The library converts to what is asked for; transparent pixels are laid on black.
  png.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  std::vector<uint8_t> rows(PNG_IMAGE_SIZE(png));
  const png_color black{0, 0, 0};
  if (png_image_finish_read(&png, &black, rows.data(), 0, nullptr) == 0) fail();
  return from_rows(rows, channels, png.height, png.width);
}

/// How libjpeg reports: it calls back. A warning (a file that ends early) counts as a fault, too.
struct JpegFault {
  jpeg_error_mgr manager;
  jmp_buf back;
  char text[JMSG_LENGTH_MAX];
};

void jpeg_failed(j_common_ptr info) {
  auto* fault = reinterpret_cast<JpegFault*>(info->err);
  info->err->format_message(info, fault->text);
  longjmp(fault->back, 1);
}

void jpeg_warned(j_common_ptr info, int level) {
  if (level < 0) jpeg_failed(info);
}

/// Decodes to rows, and its size. Returns false with the reason in fault.text. Faults come
/// here by longjmp, which runs no destructors: so there is only plain C data here, and `rows`
/// is the caller's.
bool decode_jpeg_rows(const std::string& bytes, int64_t channels, std::vector<uint8_t>& rows,
                      int64_t size[2], JpegFault& fault) {
  jpeg_decompress_struct jpeg{};
  jpeg.err = jpeg_std_error(&fault.manager);
  fault.manager.error_exit = jpeg_failed;
  fault.manager.emit_message = jpeg_warned;
  if (setjmp(fault.back) != 0) {
    jpeg_destroy_decompress(&jpeg);
    return false;
  }

  // The header alone says how large the image is: one that would take gigabytes is refused before
  // any memory is taken for it.
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&jpeg, TRUE);
  if (int64_t{jpeg.image_width} * jpeg.image_height > kMostPixels) {
    std::snprintf(fault.text, sizeof fault.text, "%u x %u pixels are too many", jpeg.image_width,
                  jpeg.image_height);
    longjmp(fault.back, 1);
  }

  // The library converts colours itself, so that rows have the channels that the job asks for.
  jpeg.out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_start_decompress(&jpeg);
  size[0] = jpeg.output_height;
  size[1] = jpeg.output_width;
  rows.resize(static_cast<size_t>(size[0] * size[1] * channels));
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW row =
        rows.data() + static_cast<size_t>(jpeg.output_scanline) * jpeg.output_width * channels;
    jpeg_read_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_decompress(&jpeg);
  jpeg_destroy_decompress(&jpeg);
  return true;
}

}  // namespace

Image decode_image(const std::string& bytes, const std::string& path, int64_t channels) {
  TUTTI_CHECK(channels == 1 || channels == 3, "an image of {} channels", channels);
  if (bytes.starts_with("\x89PNG")) return decode_png(bytes, path, channels);
  if (!bytes.starts_with("\xff\xd8")) throw Error(fmt::format("{}: neither PNG nor JPEG", path));
  JpegFault fault{};
  std::vector<uint8_t> rows;
  int64_t size[2] = {0, 0};
  if (!decode_jpeg_rows(bytes, channels, rows, size, fault))
    throw Error(fmt::format("{}: damaged JPEG: {}", path, fault.text));
  return from_rows(rows, channels, size[0], size[1]);
}

Image resized(const Image& image, int64_t height, int64_t width) {
  if (image.height == height && image.width == width) return image;
  Image out{image.channels, height, width,
            std::vector<uint8_t>(static_cast<size_t>(image.channels * height * width))};

  // The place in the source of a pixel's centre; centres and not corners are aligned.
  const auto place = [](int64_t i, int64_t from, int64_t to) {
    return std::max(
        0.0,
        (static_cast<double>(i) + 0.5) * static_cast<double>(from) / static_cast<double>(to) - 0.5);
  };
  uint8_t* to = out.planes.data();

  // Bilinear: four neighbours, weighted by the distance to the place.
  for (int64_t c = 0; c < image.channels; ++c) {
    const uint8_t* plane = image.planes.data() + c * image.height * image.width;
    for (int64_t y = 0; y < height; ++y) {
      const double fy = place(y, image.height, height);
      const auto y0 = static_cast<int64_t>(fy), y1 = std::min(y0 + 1, image.height - 1);
      for (int64_t x = 0; x < width; ++x) {
        const double fx = place(x, image.width, width);
        const auto x0 = static_cast<int64_t>(fx), x1 = std::min(x0 + 1, image.width - 1);
        const auto at = [&](int64_t row, int64_t column) {
          return double(plane[row * image.width + column]);
        };
        const double ty = fy - static_cast<double>(y0), tx = fx - static_cast<double>(x0);
        const double upper = at(y0, x0) + (at(y0, x1) - at(y0, x0)) * tx;
        const double lower = at(y1, x0) + (at(y1, x1) - at(y1, x0)) * tx;
        *to++ = static_cast<uint8_t>(std::lround(upper + (lower - upper) * ty));
      }
    }
  }
  return out;
}

}  // namespace tutti
