// `tutti calibrate`: measures this machine for the planner (plan/search/calibration.h).
#pragma once

#include <string>

namespace tutti {

/// Writes the measured rates to `out` (empty: calibration_path()) and prints them. About ten
/// seconds.
int calibrate_command(const std::string& out);

}  // namespace tutti
