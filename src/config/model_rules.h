// What a job's model asks of it. The checks of a job know no model's arithmetic: whoever resolves a
// job to run it hands in the rules of all models (model_rules() in model/rules/rules.h), and what
// they find joins the other faults.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "config/job.h"

namespace tutti {

/// Adds a fault and the keys that it is about; the first that came from a line of a file gives the
/// place.
using AddFault =
    std::function<void(std::initializer_list<const char*> keys, const std::string& text)>;

/// The rules of one model, or of all models, which then ask model.kind. An empty function stands
/// for rules that are not known.
struct ModelRules {
  /// What the model refuses of the job's sizes.
  std::function<void(const Job& job, const AddFault& fault)> check{};
  /// The keys, or what is said in their place, and sizes that train.tensor_slices must divide.
  std::function<std::vector<std::pair<std::string, int64_t>>(const Job& job)> cut_sizes{};
  /// How many stages a pipeline may have; INT64_MAX: it is not known before the model is made.
  std::function<int64_t(const Job& job)> most_stages{};
};

}  // namespace tutti
