// What a gpt asks of a job before it is made: sizes that heads and slices cut, and the loss that
// slices of a vocabulary allow.
#pragma once

#include "config/model_rules.h"

namespace tutti {

ModelRules gpt_rules();

}  // namespace tutti
