// The small GPTs of tests that need some model, and text as its data, but not a certain one.
#pragma once

#include <string>

#include "config/job.h"
#include "config/model_rules.h"

namespace tutti::testing_support {

/// A job file. `train` and `model` are further lines of these sections.
inline std::string tiny_gpt(const std::string& train, const std::string& model = "layers = 1\n",
                            const std::string& data = "walk") {
  return "\n[model]\nkind = \"gpt\"\n" + model +
         "width = 32\nheads = 2\ncontext = 16\n[data]\nkind = \"" + data +
         "\"\n[train]\nmicro_batch_size = 2\n" + train;
}

/// Two layers and a head that shares the first block's embedding, in so many slices.
inline Job tied_gpt(int64_t tensor_slices) {
  Job job = parse_job("", "job", {});
  job.model.kind = "gpt";
  job.model.layers = 2;
  job.model.width = 64;
  job.model.heads = 2;
  job.model.context = 16;
  job.model.vocab = 256;
  job.model.tied = true;
  job.train.tensor_slices = tensor_slices;
  resolve(job, this_machine(), {});
  return job;
}

}  // namespace tutti::testing_support
