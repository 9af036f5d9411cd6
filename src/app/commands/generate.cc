#include "app/commands/generate.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "app/train_command.h"
#include "base/error.h"
#include "base/file.h"
#include "base/philox.h"
#include "base/terminal.h"
#include "config/job_parts.h"
#include "data/images/arrays.h"
#include "infer/trained.h"
#include "model/dense/autoencoder.h"
#include "tensor/threads.h"
#include "train/run_folder.h"

namespace tutti {

namespace {

constexpr int64_t kRows = 64;  // decoded at once; a sample's values do not depend on it

void draw_codes(float* to, int64_t first, int64_t width, uint64_t seed) {
  for (int64_t r = 0; r < kRows; ++r) {
    const PhiloxKey key{seed, Purpose::kSample, static_cast<uint64_t>(first + r), 0};
    for (int64_t i = 0; i < width; ++i)
      *to++ = static_cast<float>(philox_normal(key, static_cast<uint64_t>(i)));
  }
}

}  // namespace

int generate_command(const std::string& run, int64_t count, uint64_t seed, const std::string& out) {
  refuse_bad_output(out);
  const Job job = job_on_host(run);
  if (!model_part(job).reconstructs)
    throw Error(fmt::format("{}: a model of kind {} generates no samples; an autoencoder does", run,
                            job.model.kind));
  if (!job.model.variational)
    throw Error(fmt::format(
        "{}: model.variational is off, so nothing is known of where its codes are", run));
  prepare_compute_thread(1);
  Trained decoder(run, kRows, job.numerics, make_decoder);
  const int64_t inputs = job.model.inputs;
  std::vector<float> values(static_cast<size_t>(count * inputs));
  const at::Tensor codes = at::empty({kRows, job.model.latent}, at::kFloat),
                   targets = at::empty({kRows}, at::kLong);
  for (int64_t first = 0; first < count; first += kRows) {
    draw_codes(codes.mutable_data_ptr<float>(), first, job.model.latent, seed);
    const at::Tensor tensors[] = {codes, targets};
    const at::Tensor& decoded = decoder.output(tensors);
    std::copy_n(decoded.const_data_ptr<float>(), std::min(kRows, count - first) * inputs,
                values.begin() + first * inputs);
  }
  write_npy(out, {count, inputs}, values);
  show(is_stdout(out) ? stderr : stdout,
       fmt::format("{}  {} samples of {} values\n", out, count, inputs));
  return 0;
}

}  // namespace tutti
