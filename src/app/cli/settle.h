// The job that arguments mean, resolved for this machine. Needs no LibTorch.
#pragma once

#include "app/cli/arguments.h"
#include "config/job.h"

namespace tutti {

/// "a.b=v" into key and value; ConfigError when there is no '='.
std::vector<Setting> parse_settings(const std::vector<std::string>& texts, int64_t ranks);

struct Prepared {
  Job job;
  Machine machine;
  /// If a run goes on: what has changed of its processor or its precision since.
  std::vector<std::string> changes;
};
/// `elsewhere`: a job for a GPU that this host has not is resolved as if it had one.
Prepared settle(const TrainArguments& arguments, bool elsewhere = false);

}  // namespace tutti
