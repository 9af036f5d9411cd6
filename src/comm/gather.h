// Bytes of any number from every rank.
#pragma once

#include <string>
#include <vector>

#include "comm/collectives.h"

namespace tutti {

/// Every rank's bytes, in rank order; sizes may differ. Collective.
std::vector<std::string> gather_bytes(const std::string& mine, Channel& channel);

}  // namespace tutti
