// Changes of training images, keyed by (seed, sample), so they are the same for every layout and
// for a run that resumes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/philox.h"
#include "config/job.h"

namespace tutti {

/// Changes whole micro-batches after they were read. Each sample alone, in this order, by draws
/// keyed (seed, Purpose::kAugment, sample):
///   rotate, scale  by an angle and a zoom about the image's centre, in one bilinear resampling;
///                  leaves zeros where nothing was
///   crop           moved by up to so many pixels each way; leaves zeros where nothing was
///   flip           mirrored left to right
///   brightness     each channel times its own factor, at least 0
///   contrast       the distance from the image's mean times a factor
///   noise          normal noise is added to every value
///   cutout         zeros in a square about a pixel of the image, cut off at the image's border
/// Then mixup mixes row r with row B - 1 - r of the same micro-batch. Thread-safe.
class Augment {
 public:
  /// `image` is {channels, height, width}. Images are the rows of tensors[0], which is [B,
  /// channels, height, width] or flat.
  Augment(const AugmentConfig& config, std::vector<int64_t> image, uint64_t seed);
  /// `first_sample` is the position of row 0 in the job's order. With mixup, tensors[2] and [3] are
  /// other_targets and mix, which this writes.
  void apply(std::span<const at::Tensor> tensors, int64_t first_sample) const;

 private:
  void change(float* image, uint64_t sample, float* scratch) const;
  void mix(std::span<const at::Tensor> tensors, int64_t first_sample) const;

  AugmentConfig config_;
  std::vector<int64_t> image_;
  uint64_t seed_;
  std::vector<PhiloxStream> streams_;
};

}  // namespace tutti
