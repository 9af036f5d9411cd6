// Normals drawn by operations on tensors against the definition of base/philox.h.
#include "model/dense/keyed_normals.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "base/philox.h"

namespace tutti {
namespace {

TEST(KeyedNormals, TensorsDrawWhatPhiloxDraws) {
  const std::vector<int64_t> samples = {0, 1, 77, (int64_t{1} << 33) + 5, (int64_t{1} << 40) - 1};
  for (const uint64_t seed : {uint64_t{1}, uint64_t{0xFEDCBA9876543210}}) {
    for (const int64_t width : {1, 2, 7}) {
      const at::Tensor drawn = philox_normals(seed, at::tensor(samples, at::kLong), width);
      ASSERT_EQ(drawn.sizes(), (std::vector<int64_t>{static_cast<int64_t>(samples.size()), width}));
      for (size_t r = 0; r < samples.size(); ++r)
        for (int64_t i = 0; i < width; ++i) {
          const PhiloxKey key{seed, Purpose::kLatent, static_cast<uint64_t>(samples[r]), 0};
          // The words are equal; logarithm and cosine are two libraries' in float64, and are
          // rounded to float32.
          EXPECT_NEAR(drawn[static_cast<int64_t>(r)][i].item<float>(),
                      philox_normal(key, static_cast<uint64_t>(i)), 1e-6)
              << seed << " " << samples[r] << " " << i;
        }
    }
  }
}

TEST(KeyedNormals, ASamplesNoiseDoesNotDependOnItsMicroBatch) {
  Pass pass;
  pass.seed = 3;
  const at::Tensor whole = keyed_normals(pass, 6, 5, at::kCPU);
  pass.first_sample = 4;
  EXPECT_TRUE(at::equal(keyed_normals(pass, 2, 5, at::kCPU), whole.narrow(0, 4, 2)));
}

}  // namespace
}  // namespace tutti
