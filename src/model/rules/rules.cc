#include "model/rules/rules.h"

#include <fmt/format.h>

#include "config/job_parts.h"
#include "model/rules/gpt_rules.h"

namespace tutti {

namespace {

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

/// The models that ask for more than the properties in config/job_parts.cc say.
struct Row {
  std::string_view name;
  ModelRules rules;
  bool tied = false;   ///< it may be: its head can use its embedding
  bool gated = false;  ///< it has gated layers
  /// Where a pipeline's second stage may always begin; "": its blocks have names of their own.
  std::string_view second_stage{};
};

const Row& row_of(const Job& job) {
  static const Row none{};
  static const std::vector<Row> all = {
      {.name = "gpt",
       .rules = gpt_rules(),
       .tied = true,
       .gated = true,
       .second_stage = "blocks.0"},
      {.name = "mlp", .rules = cuts("model.hidden", &ModelConfig::hidden)},
      {.name = "cnn", .rules = cnn_rules()},
      {.name = "script", .rules = script_rules()},
  };
  for (const Row& row : all)
    if (row.name == job.model.kind) return row;
  return none;
}

const ModelRules& rules_of(const Job& job) { return row_of(job).rules; }

/// What a model does not have. Of a program's own nothing is known.
void check_missing(const Job& job, const AddFault& fault) {
  const Row& row = row_of(job);
  if (model_part(job).foreign) return;
  if (job.model.tied && !row.tied)
    fault({"model.tied"},
          fmt::format(
              "model.tied = true but model.kind = \"{}\": it has no embedding to tie its head to",
              job.model.kind));
  if (job.model.activation == Activation::kSwiglu && !row.gated)
    fault({"model.activation"},
          fmt::format("model.activation = \"swiglu\" but model.kind = \"{}\": it is the gated "
                      "layer of a gpt",
                      job.model.kind));
}

}  // namespace

std::string_view second_stage(const Job& job) { return row_of(job).second_stage; }

const ModelRules& model_rules() {
  static const ModelRules all = {
      .check =
          [](const Job& job, const AddFault& fault) {
            check_missing(job, fault);
            if (const ModelRules& rules = rules_of(job); rules.check) rules.check(job, fault);
          },
      .cut_sizes = [](const Job& job) -> std::vector<std::pair<std::string, int64_t>> {
        const ModelRules& rules = rules_of(job);
        if (!rules.cut_sizes) return {};
        return rules.cut_sizes(job);
      },
      .most_stages = [](const Job& job) -> int64_t {
        const ModelRules& rules = rules_of(job);
        return rules.most_stages ? rules.most_stages(job) : INT64_MAX;
      }};
  return all;
}

}  // namespace tutti
