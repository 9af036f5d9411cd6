// `tutti train`, apart from how its arguments were read.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "config/job.h"
#include "train/run.h"

namespace tutti {

struct TrainArguments {
  std::string job = "gpt-kjv";    ///< built-in or file; ignored with resume
  std::string job_text;           ///< TOML instead of a name (a user's program)
  int64_t ranks = 0, steps = -1;  ///< 0, -1: not given
  std::vector<std::string> set;   ///< section.key=value
  std::string out, resume;
};

/// "a.b=v" into key and value; ConfigError when there is no '='.
std::vector<Setting> parse_settings(const std::vector<std::string>& texts, int64_t ranks);

/// The job that the arguments mean, resolved for this machine, the library paths chosen for its
/// ISA.
struct Prepared {
  Job job;
  Machine machine;
  /// of a run that goes on: what of its processor or precision is another now
  std::vector<std::string> changes;
};
/// `elsewhere`: a job for a GPU that this host has not is resolved as if it had one.
Prepared prepare(const TrainArguments& arguments, bool elsewhere = false);
inline Job job_of(const TrainArguments& arguments) { return prepare(arguments).job; }

/// The job of a run, resolved for this host's cores whatever it was trained on: for commands that
/// only use the model.
Job job_on_host(const std::string& run);

/// Trains, prints the header and the hash; returns the exit code (0; 1 failed; stopped: 130 by
/// Ctrl-C, 143 by SIGTERM, 129 by SIGHUP). Output that cannot be written does not end a training:
/// the caller finds it when it flushes stdout.
int train_command(const TrainArguments& arguments, const MakeModel& make_model,
                  const OwnPartition& partition = {});

}  // namespace tutti
