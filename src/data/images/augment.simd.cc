// The loops over pixels, which the compiler vectorises, compiled once per instruction set. There is
// no contraction and no reassociation, so an element's bits do not depend on the width of a vector.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "data/images/augment_kernels.h"

namespace tutti::TUTTI_ISA {
namespace {

constexpr int kLanes = 16;

/// Draws block first + l of the stream for every lane l, into words[w][l]. The counters are 64 bits
/// wide, so that a product of two 32-bit words fits.
void blocks(const PhiloxStream& stream, uint64_t first, uint32_t (&words)[4][kLanes]) {
  uint64_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    c0[l] = stream.counter[0];
    c1[l] = stream.counter[1];
    c2[l] = static_cast<uint32_t>(first + l);
    c3[l] = (first + l) >> 32;
  }

  // Philox's ten rounds. Each round multiplies two of the four words; high halves are mixed with
  // the other words and the key, low halves take their places.
  uint32_t k0 = stream.key[0], k1 = stream.key[1];
  for (int round = 0; round < 10; ++round) {
    for (int l = 0; l < kLanes; ++l) {
      const uint64_t p0 = (c0[l] & 0xFFFFFFFF) * 0xD2511F53, p1 = (c2[l] & 0xFFFFFFFF) * 0xCD9E8D57;
      c0[l] = p1 >> 32 ^ c1[l] ^ k0;
      c1[l] = p1;
      c2[l] = p0 >> 32 ^ c3[l] ^ k1;
      c3[l] = p0;
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  for (int l = 0; l < kLanes; ++l) {
    words[0][l] = static_cast<uint32_t>(c0[l]);
    words[1][l] = static_cast<uint32_t>(c1[l]);
    words[2][l] = static_cast<uint32_t>(c2[l]);
    words[3][l] = static_cast<uint32_t>(c3[l]);
  }
}

/// Mirrors every row. The last vector of a row overlaps the one before it, so there is no tail.
void flip_rows(const float* from, float* to, int64_t height, int64_t width) {
  using V = float __attribute__((vector_size(kLanes * sizeof(float))));
  for (int64_t y = 0; y < height; ++y, from += width, to += width) {
    if (width < kLanes) {
      for (int64_t x = 0; x < width; ++x) to[x] = from[width - 1 - x];
      continue;
    }
    for (int64_t x = 0; x < width; x += kLanes) {
      const int64_t at = std::min(x, width - kLanes);
      V v;
      __builtin_memcpy(&v, from + width - kLanes - at, sizeof v);
      v = __builtin_shufflevector(v, v, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
      __builtin_memcpy(to + at, &v, sizeof v);
    }
  }
}

/// The natural logarithm of 0 < x <= 1 by Cephes' polynomial, within two units in the last place.
/// libm's would not vectorise, and its bits depend on its version.
inline float log_of(float x) {
  const auto bits = std::bit_cast<int32_t>(x);
  int32_t exponent = (bits >> 23) - 127;
  float m = std::bit_cast<float>((bits & 0x007FFFFF) | 0x3F800000);  // in [1, 2)
  const bool high = m > 1.41421356f;
  m = high ? m * 0.5f : m;
  exponent += high ? 1 : 0;
  const auto e = static_cast<float>(exponent);

  // x = 2^e m with m in [sqrt(1/2), sqrt(2)), where the polynomial of m - 1 is good. ln 2 is added
  // in two parts to keep its last bits.
  const float t = m - 1, z = t * t;
  float y = 7.0376836292e-2f;
  y = y * t - 1.1514610310e-1f;
  y = y * t + 1.1676998740e-1f;
  y = y * t - 1.2420140846e-1f;
  y = y * t + 1.4249322787e-1f;
  y = y * t - 1.6668057665e-1f;
  y = y * t + 2.0000714765e-1f;
  y = y * t - 2.4999993993e-1f;
  y = y * t + 3.3333331174e-1f;
  y = y * t * z;
  y = y + e * -2.12194440e-4f - 0.5f * z;
  return t + y + e * 0.693359375f;
}

/// Two normals by Box and Muller: 24 bits of one word give the radius, 32 bits of another
/// the angle.
inline void normals(uint32_t w0, uint32_t w1, float& a, float& b) {
  const float u = static_cast<float>(static_cast<int32_t>(w0 >> 8) + 1) * 0x1p-24f;
  const float radius = std::sqrt(std::max(-2 * log_of(u), 0.0f));

  // The two highest bits name the quadrant; the others are an angle t in [-pi/4, pi/4), for which
  // short polynomials of sine and cosine are enough. The quadrant then swaps and negates them.
  const uint32_t quadrant = w1 >> 30;
  const float t = static_cast<float>(static_cast<int32_t>(w1 & 0x3FFFFFFF) - 0x20000000) *
                  (0.785398163f * 0x1p-29f);
  const float z = t * t;
  const float sine =
      t + t * z * (-1.6666654611e-1f + z * (8.3321608736e-3f + z * -1.9515295891e-4f));
  const float cosine =
      1 - 0.5f * z + z * z * (4.166664568e-2f + z * (-1.388731625e-3f + z * 2.443315711e-5f));
  const bool swap = (quadrant & 1) != 0;
  const float x = swap ? sine : cosine, y = swap ? cosine : sine;
  a = radius * (((quadrant ^ quadrant >> 1) & 1) != 0 ? -x : x);
  b = radius * (quadrant >> 1 != 0 ? -y : y);
}

}  // namespace

void turn(float* image, const ImageShape& shape, Rotation by, float* scratch) {
  // The image is copied into a frame of zeros, one pixel before and two after, which takes the
  // place of tests for the border.
  const int64_t height = shape.height, width = shape.width, stride = width + 3,
                plane = (height + 3) * stride;
  for (int64_t c = 0; c < shape.channels; ++c) {
    for (int64_t y = -1; y < height + 2; ++y) {
      float* row = scratch + c * plane + (y + 1) * stride;
      if (y < 0 || y >= height) {
        std::fill_n(row, stride, 0.0f);
        continue;
      }
      row[0] = row[width + 1] = row[width + 2] = 0;
      std::memcpy(row + 1, image + (c * height + y) * width,
                  static_cast<size_t>(width) * sizeof(float));
    }
  }

  // For every pixel of the result the place in the source is computed once for all channels.
  const float middle_x = static_cast<float>(width - 1) * 0.5f,
              middle_y = static_cast<float>(height - 1) * 0.5f;
  const auto last_x = static_cast<float>(width + 1), last_y = static_cast<float>(height + 1);
  for (int64_t y = 0; y < height; ++y) {
    const float dy = static_cast<float>(y) - middle_y;
    const float from_x = middle_x + 1 + by.across * dy, from_y = middle_y + 1 + by.along * dy;
    for (int64_t begin = 0; begin < width; begin += kLanes) {
      int32_t at[kLanes];
      float fx[kLanes], fy[kLanes], corner[4][kLanes];
      for (int l = 0; l < kLanes; ++l) {
        const float dx = static_cast<float>(static_cast<int32_t>(begin) + l) - middle_x;
        // Places count from the frame's corner. What is outside of the frame is as zero as the
        // frame, so it is clamped to it.
        const float sx = std::min(std::max(from_x + by.along * dx, 0.0f), last_x);
        const float sy = std::min(std::max(from_y - by.across * dx, 0.0f), last_y);
        const auto ix = static_cast<int32_t>(sx), iy = static_cast<int32_t>(sy);
        fx[l] = sx - static_cast<float>(ix);
        fy[l] = sy - static_cast<float>(iy);
        at[l] = iy * static_cast<int32_t>(stride) + ix;
      }
      const int64_t here = std::min<int64_t>(kLanes, width - begin);

      // Gathering the four corners is kept apart from the arithmetic, which then vectorises.
      for (int64_t c = 0; c < shape.channels; ++c) {
        const float* frame = scratch + c * plane;
        for (int l = 0; l < kLanes; ++l) {
          const float* p = frame + at[l];
          corner[0][l] = p[0];
          corner[1][l] = p[1];
          corner[2][l] = p[stride];
          corner[3][l] = p[stride + 1];
        }
        float out[kLanes];
        for (int l = 0; l < kLanes; ++l) {
          const float above = corner[0][l] + fx[l] * (corner[1][l] - corner[0][l]);
          const float below = corner[2][l] + fx[l] * (corner[3][l] - corner[2][l]);
          out[l] = above + fy[l] * (below - above);
        }
        std::memcpy(image + (c * height + y) * width + begin, out,
                    static_cast<size_t>(here) * sizeof(float));
      }
    }
  }
}

// A plane is moved as one piece of memory. What then comes in from the row before or after is
// overwritten with zeros.
void move(float* image, const ImageShape& shape, int64_t down, int64_t right, bool flip,
          float* scratch) {
  const int64_t height = shape.height, width = shape.width, plane = shape.pixels();
  if (std::abs(down) >= height || std::abs(right) >= width)
    return (void)std::fill_n(image, shape.values(), 0.0f);
  const int64_t by = down * width + right;
  const int64_t begin = std::max<int64_t>(0, by), end = std::min(plane, plane + by);
  for (int64_t c = 0; c < shape.channels; ++c, image += plane) {
    float* to = flip ? scratch : image;
    std::memmove(to + begin, image + begin - by, static_cast<size_t>(end - begin) * sizeof(float));
    std::fill_n(to, begin, 0.0f);
    std::fill(to + end, to + plane, 0.0f);
    const int64_t first = right > 0 ? 0 : width + right;
    for (int64_t y = 0; right != 0 && y < height; ++y) {
      for (int64_t x = first; x < first + std::abs(right); ++x) to[y * width + x] = 0;
    }
    if (flip) flip_rows(scratch, image, height, width);
  }
}

void scale(float* x, int64_t n, float factor) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

void contrast(float* x, int64_t n, float factor) {
  // The mean is summed in 16 fixed parts: the same for every width of vectors.
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) sums[l] += x[i + l];
  }
  for (; i < n; ++i) sums[0] += x[i];
  double sum = 0;
  for (const double s : sums) sum += s;
  const auto mean = static_cast<float>(sum / static_cast<double>(n));
  for (int64_t k = 0; k < n; ++k) x[k] = (x[k] - mean) * factor + mean;
}

void noise(float* x, int64_t n, const PhiloxStream& stream, float deviation) {
  // 16 blocks give 64 normals: first words 0 and 1 of all lanes, then words 2 and 3. Value i
  // depends on (stream, i) alone; a tail draws a whole group and uses its beginning.
  constexpr int64_t kGroup = 4 * kLanes;
  uint32_t words[4][kLanes];
  float drawn[4][kLanes];
  for (int64_t i = 0; i < n; i += kGroup) {
    blocks(stream, static_cast<uint64_t>(i / 4), words);
    for (int l = 0; l < kLanes; ++l) normals(words[0][l], words[1][l], drawn[0][l], drawn[1][l]);
    for (int l = 0; l < kLanes; ++l) normals(words[2][l], words[3][l], drawn[2][l], drawn[3][l]);
    const float* d = &drawn[0][0];
    const int64_t here = std::min(kGroup, n - i);
    for (int64_t k = 0; k < here; ++k) x[i + k] += deviation * d[k];
  }
}

void mix(float* a, float* b, int64_t n, float mix_a, float mix_b) {
  for (int64_t i = 0; i < n; ++i) {
    const float x = a[i], y = b[i];
    a[i] = (1 - mix_a) * x + mix_a * y;
    b[i] = (1 - mix_b) * y + mix_b * x;
  }
}

}  // namespace tutti::TUTTI_ISA
