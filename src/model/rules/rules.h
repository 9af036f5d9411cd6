// What the models ask of a job before they are made, for resolve(). Free of torch: the command
// checks a job without loading it.
#pragma once

#include <string>
#include <vector>

#include "config/model_rules.h"

namespace tutti {

/// The rules of all models, by model.kind. None of them makes a model or computes.
const ModelRules& model_rules();
/// The models that have rules.
std::vector<std::string> ruled_models();

}  // namespace tutti
