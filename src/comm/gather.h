// Gathers byte strings of any length from every rank: an all-gather whose parts may differ in size.
#pragma once

#include <string>
#include <vector>

#include "comm/collectives.h"

namespace tutti {

/// Every rank's bytes, in rank order. Collective.
std::vector<std::string> gather_bytes(const std::string& mine, Channel& channel);

}  // namespace tutti
