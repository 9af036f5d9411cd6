// Chooses the model by model.kind, and for gpt the table of kernels that it computes with.
#include "model/make_model.h"

#include "base/error.h"
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
  const std::string& precision = job.numerics.precision;
  if (job.numerics.device != "cuda")
    return make_gpt(job, kernels(isa_of(job.numerics.isa), matmul_of(job.numerics.matmul)));
  const DeviceLibrary& library = device_library();
  if (precision == "bfloat16") return make_gpt(job, *library.bfloat16);
  if (precision == "float16") return make_gpt(job, *library.float16);
  return make_gpt(job, *library.float32);
}

}  // namespace

Model make_model(const Job& job) {
  if (job.model.kind == "mlp") return make_mlp(job);
  if (job.model.kind == "gpt") return make_gpt(job);
  if (job.model.kind == "cnn") return make_cnn(job);
  if (job.model.kind == "script") return make_script(job);
  if (job.model.kind == "wide-deep") return make_wide_deep(job);
  if (job.model.kind == "autoencoder") return make_autoencoder(job);
  if (job.model.kind == "custom")
    throw Error(
        "model.kind = \"custom\": the model is part of a C++ program; run that program instead "
        "(examples/custom_model)");
  throw Error(fmt::format("model.kind = \"{}\" is not known", job.model.kind));
}

}  // namespace tutti
