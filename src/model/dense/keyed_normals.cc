// Draws the same normals in two ways: on the CPU by philox_normal, on a device by Philox on
// tensors. There a 32-bit word is an int64 below 2^32. A product of two words may wrap around, but
// its 64 bits are the right ones, and a shift's sign bits are masked away.
#include "model/dense/keyed_normals.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <numbers>

#include "base/philox.h"
#include "model/core/device_tensor.h"

namespace tutti {

namespace {

constexpr int64_t kWord = 0xFFFFFFFF;

using Words = std::array<at::Tensor, 4>;

at::Tensor low(const at::Tensor& x) { return x & kWord; }
at::Tensor high(const at::Tensor& x) { return at::bitwise_right_shift(x, 32) & kWord; }

// The ten rounds of philox_raw (base/philox.h), element by element.
Words rounds(Words counter, at::Tensor key0, at::Tensor key1) {
  for (int round = 0; round < 10; ++round) {
    const at::Tensor p0 = counter[0] * int64_t{0xD2511F53}, p1 = counter[2] * int64_t{0xCD9E8D57};
    counter = {high(p1) ^ counter[1] ^ key0, low(p1), high(p0) ^ counter[3] ^ key1, low(p0)};
    key0 = low(key0 + int64_t{0x9E3779B9});
    key1 = low(key1 + int64_t{0xBB67AE85});
  }
  return counter;
}

// The upper 53 of the 64 bits (lo, hi).
at::Tensor fraction_bits(const at::Tensor& lo, const at::Tensor& hi) {
  return hi * (int64_t{1} << 21) + at::bitwise_right_shift(lo, 11);
}

}  // namespace

at::Tensor philox_normals(uint64_t seed, const at::Tensor& samples, int64_t width) {
  // The key schedule of philox_stream: seed and purpose give a key, the sample gives a stream
  // of it.
  const auto domain = philox_raw({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                                  static_cast<uint32_t>(Purpose::kLatent), 0},
                                 {0, 0});
  const at::Tensor zeros = at::zeros_like(samples);
  const Words stream = rounds({low(samples), high(samples), zeros, zeros},
                              at::full_like(samples, int64_t{domain[0]}),
                              at::full_like(samples, int64_t{domain[1]}));

  // Draw j of a sample makes normals 2 j and 2 j + 1, by Box and Muller from two uniform numbers.
  const auto column = [](const at::Tensor& x) { return x.unsqueeze(1); };
  const at::Tensor pairs = at::arange((width + 1) / 2, samples.options()).unsqueeze(0);
  const Words words = rounds({column(stream[2]), column(stream[3]), pairs, at::zeros_like(pairs)},
                             column(stream[0]), column(stream[1]));
  const at::Tensor u = (fraction_bits(words[0], words[1]) + 1).to(at::kDouble) * 0x1p-53;  // (0, 1]
  const at::Tensor v = fraction_bits(words[2], words[3]).to(at::kDouble) * 0x1p-53;
  const at::Tensor radius = (u.log() * -2.0).sqrt(), angle = v * (2 * std::numbers::pi);
  const at::Tensor both = at::stack({radius * angle.cos(), radius * angle.sin()}, 2).flatten(1);
  return both.narrow(1, 0, width).to(at::kFloat);
}

at::Tensor keyed_normals(const Pass& pass, int64_t rows, int64_t width, at::Device device) {
  // With keys the step's first sample is in the device's memory, so that a captured step can be
  // launched again for other samples.
  if (!device.is_cpu()) {
    const auto options = at::TensorOptions().dtype(at::kLong).device(device);
    at::Tensor samples = at::arange(rows, options) + pass.first_sample;
    if (pass.keys != nullptr)
      samples = samples + view_on(device, &pass.keys->first_sample, {1}, at::kLong);
    return philox_normals(pass.seed, samples, width);
  }
  const at::Tensor values = at::empty({rows, width}, at::kFloat);
  draw_keyed_normals(pass, rows, width, values.mutable_data_ptr<float>());
  return values;
}

void draw_keyed_normals(const Pass& pass, int64_t rows, int64_t width, float* to) {
  for (int64_t r = 0; r < rows; ++r) {
    const PhiloxKey key{pass.seed, Purpose::kLatent, static_cast<uint64_t>(pass.first_sample + r),
                        0};
    for (int64_t i = 0; i < width; ++i)
      *to++ = static_cast<float>(philox_normal(key, static_cast<uint64_t>(i)));
  }
}

}  // namespace tutti
