// How many bytes a plan moves between which ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/ir/program.h"

namespace tutti {

/// Bytes of the tensor that one column brings to an Exchange. A gradient goes the other way:
/// partial sums of what was gathered, or parts of what was scattered.
int64_t exchanged_bytes(const OutputShape& output, const Instruction& exchange);

/// Payload bytes that a rank sends to another in a step, or that the other reads in its window:
/// [from][to].
using LinkBytes = std::vector<std::vector<int64_t>>;
LinkBytes link_bytes(const Plan& plan, const ModelShape& model);

}  // namespace tutti
