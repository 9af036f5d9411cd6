// Draws codes by the seed and decodes them a block at a time. A sample does not depend on the block
// that it is decoded in.
#include "infer/generator.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/philox.h"
#include "config/job_parts.h"
#include "model/dense/autoencoder.h"

namespace tutti {

namespace {

constexpr int64_t kRows = 64;  // decoded at once; a sample's values do not depend on it

/// The codes of kRows samples from `first` on: normal, which variational training draws them to.
void draw_codes(float* to, int64_t first, int64_t width, uint64_t seed) {
  for (int64_t r = 0; r < kRows; ++r) {
    const PhiloxKey key{seed, Purpose::kSample, static_cast<uint64_t>(first + r), 0};
    for (int64_t i = 0; i < width; ++i)
      *to++ = static_cast<float>(philox_normal(key, static_cast<uint64_t>(i)));
  }
}

/// The job, where its model generates samples.
const Job& generating(const std::string& run, const Job& job) {
  if (!model_part(job).reconstructs)
    throw Error(fmt::format("{}: a model of kind {} generates no samples; an autoencoder does", run,
                            job.model.kind));
  if (!job.model.variational)
    throw Error(fmt::format(
        "{}: model.variational is off, so nothing is known of where its codes are", run));
  return job;
}

}  // namespace

Generator::Generator(const std::string& run, const Job& job)
    : width_(generating(run, job).model.inputs),
      code_width_(job.model.latent),
      decoder_(run, kRows, job.numerics, make_decoder) {}

std::vector<float> Generator::samples(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count * width_));
  // A model ends with a loss, which has targets; a decoder's does not look at them.
  const at::Tensor codes = at::empty({kRows, code_width_}, at::kFloat),
                   targets = at::empty({kRows}, at::kLong);
  for (int64_t first = 0; first < count; first += kRows) {
    draw_codes(codes.mutable_data_ptr<float>(), first, code_width_, seed);
    const at::Tensor tensors[] = {codes, targets};
    const at::Tensor& decoded = decoder_.output(tensors);
    std::copy_n(decoded.const_data_ptr<float>(), std::min(kRows, count - first) * width_,
                values.begin() + first * width_);
  }
  return values;
}

}  // namespace tutti
