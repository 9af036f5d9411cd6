// Decides which change a sample gets. One block of draws is for where its pixels go, one for how
// they look, and more are drawn only for colours, noise and mixup. Which word is used for what does
// not depend on what is switched on, so switching one thing on leaves the others as they were.
#include "data/images/augment.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/error.h"
#include "base/portable_math.h"
#include "base/processor.h"
#include "data/images/augment_kernels.h"

namespace tutti {
namespace {

// The second word of a key, which is part of the job's meaning. For kSample the first word is the
// number of the block, so the streams are the same for all samples and have one block for each of
// them. For the others the first word is the sample.
constexpr uint64_t kSample = 0, kNoise = 1, kMixup = 2;
// The blocks of a sample and the words in them:
//   kPlace       down, right, flip, angle
//   kLook        zoom, contrast, cutout's y, cutout's x
//   kBrightness  and on: the factors of 4 channels each
constexpr uint64_t kPlace = 0, kLook = 1, kBrightness = 2;

// The loops of one code path.
struct Kernels {
  decltype(&isa_portable::turn) turn;
  decltype(&isa_portable::move) move;
  decltype(&isa_portable::scale) scale;
  decltype(&isa_portable::contrast) contrast;
  decltype(&isa_portable::noise) noise;
  decltype(&isa_portable::mix) mix;
};

#define TUTTI_AUGMENT_LOOPS(isa) \
  { isa::turn, isa::move, isa::scale, isa::contrast, isa::noise, isa::mix }
constexpr Kernels kLoops[] = TUTTI_TABLE(TUTTI_AUGMENT_LOOPS);
#undef TUTTI_AUGMENT_LOOPS

const Kernels& loops() { return on_path(kLoops); }

// Draws and their shapes.
using Words = std::array<uint32_t, 4>;

Words block_of(const PhiloxStream& stream, uint64_t index) {
  return philox_raw({stream.counter[0], stream.counter[1], static_cast<uint32_t>(index),
                     static_cast<uint32_t>(index >> 32)},
                    stream.key);
}

double uniform(uint32_t word) { return static_cast<double>(word) * 0x1p-32; }
double either_way(uint32_t word, double range) { return range * (2 * uniform(word) - 1); }
int64_t below(uint32_t word, int64_t n) {
  return static_cast<int64_t>(uint64_t{word} * static_cast<uint64_t>(n) >> 32);
}
/// A number in (0, 1], whose logarithm is finite.
double positive(uint32_t high, uint32_t low) {
  return static_cast<double>(((uint64_t{high} << 32 | low) >> 11) + 1) * 0x1p-53;
}

/// A gamma draw of shape at least 1 by Marsaglia and Tsang's rejection. Attempt t takes blocks 2 t
/// and 2 t + 1 of the part's own range.
double gamma(double shape, const PhiloxStream& stream, uint64_t part) {
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (uint64_t attempt = 0;; ++attempt) {
    const uint64_t at = part << 32 | attempt * 2;
    const Words w = block_of(stream, at), u = block_of(stream, at + 1);
    const double x = std::sqrt(-2 * portable::log(positive(w[0], w[1]))) *
                     portable::cos(2 * std::numbers::pi * positive(w[2], w[3]));
    const double cube = (1 + c * x) * (1 + c * x) * (1 + c * x);
    if (cube > 0 &&
        portable::log(positive(u[0], u[1])) < 0.5 * x * x + d - d * cube + d * portable::log(cube))
      return d * cube;
  }
}

/// A draw from Beta(alpha, alpha). For alpha > 1 it is made of two gamma draws; else by Joehnk's
/// rejection, in logarithms, since powers of 1 / alpha would underflow.
double beta(double alpha, const PhiloxStream& stream) {
  if (alpha > 1) {
    const double x = gamma(alpha, stream, 0), y = gamma(alpha, stream, 1);
    return x / (x + y);
  }
  for (uint64_t attempt = 0;; ++attempt) {
    const Words w = block_of(stream, attempt);
    const double x = portable::log(positive(w[0], w[1])) / alpha,
                 y = portable::log(positive(w[2], w[3])) / alpha;
    if (portable::exp(x) + portable::exp(y) <= 1) return 1 / (1 + portable::exp(y - x));
  }
}

}  // namespace

Augment::Augment(const AugmentConfig& config, std::vector<int64_t> image, uint64_t seed)
    : config_(config), image_(std::move(image)), seed_(seed) {
  TUTTI_CHECK(image_.size() == 3 &&
                  std::all_of(image_.begin(), image_.end(), [](int64_t n) { return n > 0; }),
              "an image of {} dimensions", image_.size());

  // The streams of kSample are the same for all samples, so they are made once.
  const auto count = kBrightness + (static_cast<uint64_t>(image_[0]) + 3) / 4;
  for (uint64_t block = 0; block < count; ++block) {
    streams_.push_back(philox_stream({seed_, Purpose::kAugment, block, kSample}));
  }
}

void Augment::apply(std::span<const at::Tensor> tensors, int64_t first_sample) const {
  if (!config_.any()) return;
  const ImageShape shape{image_[0], image_[1], image_[2]};
  const at::Tensor& images = tensors[0];
  const int64_t rows = images.size(0);
  TUTTI_CHECK(images.scalar_type() == at::kFloat && images.is_contiguous() &&
                  images.numel() == rows * shape.values(),
              "augmentation of {} rows of {} values as images of {}x{}x{}", rows,
              images.numel() / std::max<int64_t>(rows, 1), shape.channels, shape.height,
              shape.width);
  auto* values = images.mutable_data_ptr<float>();

  // Scratch is allocated once per micro-batch; the two kernels take turns with it.
  std::vector<float> scratch(
      static_cast<size_t>(std::max(turn_scratch(shape), move_scratch(shape))));
  for (int64_t row = 0; row < rows; ++row) {
    change(values + row * shape.values(), static_cast<uint64_t>(first_sample + row),
           scratch.data());
  }
  if (config_.mixup > 0) mix(tensors, first_sample);
}

void Augment::change(float* image, uint64_t sample, float* scratch) const {
  const ImageShape shape{image_[0], image_[1], image_[2]};
  const Kernels& k = loops();

  // A block is only drawn if one of its words is used.
  Words place{}, look{};
  if (config_.crop > 0 || config_.flip > 0 || config_.rotate > 0)
    place = block_of(streams_[kPlace], sample);
  if (config_.scale > 0 || config_.contrast > 0 || config_.cutout > 0)
    look = block_of(streams_[kLook], sample);

  // Geometry comes first, so that what follows acts on the image as it will be seen.
  if (config_.rotate > 0 || config_.scale > 0) {
    const double angle = either_way(place[3], config_.rotate) * std::numbers::pi / 180;
    const double zoom = 1 + either_way(look[0], config_.scale);
    k.turn(image, shape,
           {static_cast<float>(portable::cos(angle) / zoom),
            static_cast<float>(portable::sin(angle) / zoom)},
           scratch);
  }

  // Crop and flip are one pass over the image.
  const int64_t down = below(place[0], 2 * config_.crop + 1) - config_.crop;
  const int64_t right = below(place[1], 2 * config_.crop + 1) - config_.crop;
  const bool flip = uniform(place[2]) < config_.flip;
  if (down != 0 || right != 0 || flip) k.move(image, shape, down, right, flip, scratch);

  // Looks: each channel's brightness, then contrast and noise of the whole image.
  if (config_.brightness > 0) {
    for (int64_t c = 0; c < shape.channels; ++c) {
      const Words words = block_of(streams_[kBrightness + static_cast<uint64_t>(c / 4)], sample);
      const double low = std::max(0.0, 1 - config_.brightness), high = 1 + config_.brightness;
      const double factor = low + uniform(words[static_cast<size_t>(c % 4)]) * (high - low);
      k.scale(image + c * shape.pixels(), shape.pixels(), static_cast<float>(factor));
    }
  }
  if (config_.contrast > 0) {
    k.contrast(image, shape.values(),
               static_cast<float>(1 + either_way(look[1], config_.contrast)));
  }
  if (config_.noise > 0) {
    k.noise(image, shape.values(), philox_stream({seed_, Purpose::kAugment, sample, kNoise}),
            static_cast<float>(config_.noise));
  }

  // Cutout is last, so that its square stays zero. The square may hang over the border.
  if (config_.cutout > 0) {
    const int64_t y = below(look[2], shape.height) - config_.cutout / 2;
    const int64_t x = below(look[3], shape.width) - config_.cutout / 2;
    const int64_t left = std::max<int64_t>(0, x),
                  right_end = std::min(shape.width, x + config_.cutout);
    for (int64_t c = 0; c < shape.channels; ++c) {
      for (int64_t r = std::max<int64_t>(0, y); r < std::min(shape.height, y + config_.cutout);
           ++r) {
        float* line = image + (c * shape.height + r) * shape.width;
        std::fill(line + left, line + right_end, 0.0f);
      }
    }
  }
}

void Augment::mix(std::span<const at::Tensor> tensors, int64_t first_sample) const {
  TUTTI_CHECK(tensors.size() >= 4, "mixup of {} tensors", tensors.size());

  // Row r is mixed with row rows - 1 - r: images both at once, since each needs the other's values
  // from before. Targets are not mixed but passed on, together with the share.
  const int64_t rows = tensors[0].size(0);
  const int64_t values = tensors[0].numel() / rows;
  const size_t target_bytes = tensors[1].nbytes() / static_cast<size_t>(rows);
  auto* images = tensors[0].mutable_data_ptr<float>();
  const auto* targets = static_cast<const std::byte*>(tensors[1].const_data_ptr());
  auto* others = static_cast<std::byte*>(tensors[2].mutable_data_ptr());
  auto* mix = tensors[3].mutable_data_ptr<float>();
  for (int64_t row = 0; row < rows; ++row) {
    const auto sample = static_cast<uint64_t>(first_sample + row);
    mix[row] = static_cast<float>(
        beta(config_.mixup, philox_stream({seed_, Purpose::kAugment, sample, kMixup})));
    std::memcpy(others + static_cast<size_t>(row) * target_bytes,
                targets + static_cast<size_t>(rows - 1 - row) * target_bytes, target_bytes);
  }

  // The middle row of an odd number would be mixed with itself, so it stays as it is.
  for (int64_t row = 0; row < rows / 2; ++row) {
    const int64_t other = rows - 1 - row;
    loops().mix(images + row * values, images + other * values, values, mix[row], mix[other]);
  }
}

}  // namespace tutti
