// `tutti trace`: what every rank executed when.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

/// Merges the ranks' records of a run into its trace.json (Chrome, Perfetto) and trace.svg (one
/// step; negative: the one in the middle of what was kept). Returns the exit code.
int trace_command(const std::string& run, int64_t step);

}  // namespace tutti
