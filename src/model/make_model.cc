// Chooses the model by model.kind, and for gpt the table of kernels that it computes with.
#include "model/make_model.h"

#include "base/error.h"
#include "config/isa.h"
#include "config/job_parts.h"
#include "device/library.h"
#include "model/adapt/script.h"
#include "model/cnn/cnn.h"
#include "model/dense/autoencoder.h"
#include "model/dense/mlp.h"
#include "model/dense/wide_deep.h"
#include "model/gpt/gpt.h"

namespace tutti {

namespace {

/// A gpt is hand-written for float32 on the CPU and for every precision on a GPU: the type of its
/// activations follows from the table of kernels.
Model make_gpt(const Job& job) {
  if (job.numerics.device != DeviceKind::kCuda)
    return make_gpt(job, kernels(path_of(job.layout), job.numerics.matmul));
  const DeviceLibrary& library = device_library();
  switch (job.numerics.precision) {
    case Precision::kBfloat16:
      return make_gpt(job, *library.bfloat16);
    case Precision::kFloat16:
      return make_gpt(job, *library.float16);
    case Precision::kFloat32:
      break;
  }
  return make_gpt(job, *library.float32);
}

/// A model of the table in config/job_parts.cc.
struct Row {
  std::string_view name;
  Model (*make)(const Job& job);
};

Model make_custom(const Job&) {
  throw Error(
      "model.kind = \"custom\": the model is part of a C++ program; run that program instead "
      "(examples/custom_model)");
}

constexpr Row kModels[] = {
    {"gpt", make_gpt},
    {"mlp", make_mlp},
    {"cnn", make_cnn},
    {"wide-deep", make_wide_deep},
    {"autoencoder", make_autoencoder},
    {"script", make_script},
    {"custom", make_custom},
};

}  // namespace

std::vector<std::string> model_names() { return row_names(kModels); }

Model make_model(const Job& job) {
  for (const Row& row : kModels)
    if (row.name == job.model.kind) return row.make(job);
  throw Error(fmt::format("model.kind = \"{}\" is not known", job.model.kind));
}

}  // namespace tutti
