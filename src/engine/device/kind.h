// What is known of a job's device before any of it is used.
#pragma once

#include <string>
#include <vector>

#include "config/job.h"
#include "device/library.h"
#include "model/core/segment.h"

namespace tutti {

/// What two devices must have in common to give the same bits: name, compute capability
/// and library versions.
std::string describe_kind(const DeviceInfo& info);

/// How many ranks are on the same device as this one: of `devices` devices, rank r takes device r
/// mod `devices`. (layout.hosts groups ranks of one host.)
int ranks_on_device(const Job& job, int rank, int devices);

/// Why steps of this model cannot be captured and launched again, segment by segment; empty if they
/// can.
std::vector<std::string> capture_faults(const Model& model);

}  // namespace tutti
