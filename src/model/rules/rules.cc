// A table of the models that ask for more than the properties of their rows in config/job_parts.cc
// say. Arithmetic of a single model is in a file of its own.
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
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all = {
      {.name = "gpt", .rules = gpt_rules()},
      {.name = "mlp", .rules = cuts("model.hidden", &ModelConfig::hidden)},
      {.name = "cnn", .rules = cnn_rules()},
      {.name = "script", .rules = script_rules()},
  };
  return all;
}

const ModelRules& rules_of(const Job& job) {
  static const ModelRules none{};
  for (const Row& row : rows())
    if (row.name == job.model.kind) return row.rules;
  return none;
}

}  // namespace

std::vector<std::string> ruled_models() { return row_names(rows()); }

const ModelRules& model_rules() {
  static const ModelRules all = {
      .check =
          [](const Job& job, const AddFault& fault) {
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
