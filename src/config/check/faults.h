// The rules of a job that no single key can hold.
#pragma once

#include <string>
#include <vector>

#include "config/job.h"
#include "config/model_rules.h"

namespace tutti {

/// Everything that is wrong with a resolved job on this machine, each with the line of the file
/// that says it.
std::vector<std::string> faults_of(const Job& job, const Machine& machine,
                                   const ModelRules& rules = {});

}  // namespace tutti
