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
#include "model/gpt/gpt_rules.h"

namespace tutti {

namespace {

/// A gpt is hand-written for float32 on the CPU and for every precision on a GPU: the type of its
/// activations follows from the table of kernels.
Model make_gpt(const Job& job) {
  if (job.numerics.device != DeviceKind::kCuda)
    return make_gpt(job, kernels(job.numerics.isa, job.numerics.matmul));
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

/// A model of the table in config/parts.cc.
struct Row {
  std::string_view name;
  Model (*make)(const Job& job);
  ModelRules rules{};
};

ModelRules cuts(const char* key, std::vector<int64_t> ModelConfig::*sizes) {
  return {.cut_sizes = [=](const Job& job) {
    std::vector<std::pair<std::string, int64_t>> all;
    for (int64_t size : job.model.*sizes) all.emplace_back(key, size);
    return all;
  }};
}

ModelRules cnn_rules() {
  ModelRules rules = cuts("model.channels", &ModelConfig::channels);
  rules.check = [](const Job& job, const AddFault& fault) {
    if (job.model.channels.empty())
      fault({"model.channels"}, "model.channels is empty: a cnn has a stage");
  };
  return rules;
}

ModelRules script_rules() {
  return {.check = [](const Job& job, const AddFault& fault) {
    if (job.model.path.empty())
      fault({"model.path"},
            "model.path is empty but model.kind = \"script\": name a TorchScript file");
  }};
}

Model make_custom(const Job&) {
  throw Error(
      "model.kind = \"custom\": the model is part of a C++ program; run that program instead "
      "(examples/custom_model)");
}

const std::vector<Row>& rows() {
  static const std::vector<Row> all = {
      {"gpt", make_gpt, gpt_rules()},
      {"mlp", make_mlp, cuts("model.hidden", &ModelConfig::hidden)},
      {"cnn", make_cnn, cnn_rules()},
      {"wide-deep", make_wide_deep},
      {"autoencoder", make_autoencoder},
      {"script", make_script, script_rules()},
      {"custom", make_custom},
  };
  return all;
}

const Row* row_of(const Job& job) {
  for (const Row& row : rows())
    if (row.name == job.model.kind) return &row;
  return nullptr;
}

}  // namespace

Model make_model(const Job& job) {
  if (const Row* row = row_of(job)) return row->make(job);
  throw Error(fmt::format("model.kind = \"{}\" is not known", job.model.kind));
}

const ModelRules& model_rules() {
  static const ModelRules all = {
      .check =
          [](const Job& job, const AddFault& fault) {
            if (const Row* row = row_of(job); row && row->rules.check) row->rules.check(job, fault);
          },
      .cut_sizes = [](const Job& job) -> std::vector<std::pair<std::string, int64_t>> {
        const Row* row = row_of(job);
        if (!row || !row->rules.cut_sizes) return {};
        return row->rules.cut_sizes(job);
      },
      .most_stages = [](const Job& job) -> int64_t {
        const Row* row = row_of(job);
        return row && row->rules.most_stages ? row->rules.most_stages(job) : INT64_MAX;
      }};
  return all;
}

}  // namespace tutti
