// What the models ask of a job before they are made, for resolve(). Free of torch: the command
// checks a job without loading it.
#pragma once

#include <string_view>

#include "config/model_rules.h"

namespace tutti {

/// Of all models, by model.kind. Nothing of it makes a model or computes.
const ModelRules& model_rules();
/// The block with which a pipeline's second stage may always begin; "": its blocks have names of
/// their own.
std::string_view second_stage(const Job& job);

}  // namespace tutti
