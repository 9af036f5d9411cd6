// The loops over pixels of data/images/augment.h, for every code path. They do the same
// operations on every element, so all give the same bits. An image is `channels` planes of height
// x width floats.
#pragma once

#include <cstdint>

#include "base/code_path.h"
#include "base/philox.h"

namespace tutti {

struct ImageShape {
  int64_t channels = 1, height = 1, width = 1;
  int64_t pixels() const { return height * width; }
  int64_t values() const { return channels * pixels(); }
};

/// Where a pixel of the result is looked up: at (x, y) of the image, turned and stretched about
/// its centre.
struct Rotation {
  float along = 1, across = 0;  ///< cosine and sine of the angle, divided by the zoom
};

/// Floats of scratch that `turn` and `move` need.
inline int64_t turn_scratch(const ImageShape& s) {
  return s.channels * (s.height + 3) * (s.width + 3);
}
inline int64_t move_scratch(const ImageShape& s) { return s.pixels(); }

#define TUTTI_AUGMENT_KERNELS(isa)                                                              \
  namespace isa {                                                                               \
  /* Bilinear, zeros outside. */                                                                \
  void turn(float* image, const ImageShape& shape, Rotation by, float* scratch);                \
  /* Pixel (y, x) goes to (y + down, x + right), zero outside; `flip`: then mirrored. */        \
  void move(float* image, const ImageShape& shape, int64_t down, int64_t right, bool flip,      \
            float* scratch);                                                                    \
  void scale(float* x, int64_t n, float factor);                                                \
  /* (x - mean) * factor + mean, with the mean of all n. */                                     \
  void contrast(float* x, int64_t n, float factor);                                             \
  /* Draws of a standard normal, times `deviation`; value i is a function of (stream, i). */    \
  void noise(float* x, int64_t n, const PhiloxStream& stream, float deviation);                 \
  /* a becomes (1 - mix_a) a + mix_a b, and b (1 - mix_b) b + mix_b a, of the values before. */ \
  void mix(float* a, float* b, int64_t n, float mix_a, float mix_b);                            \
  }
TUTTI_ON_EACH_PATH(TUTTI_AUGMENT_KERNELS)
#undef TUTTI_AUGMENT_KERNELS

}  // namespace tutti
