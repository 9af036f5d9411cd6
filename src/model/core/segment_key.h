// Which segments of a model are alike, so that one of them is measured for all.
#pragma once

#include <string>

#include "model/core/wiring.h"

namespace tutti {

/// Equal for segments that compute, allocate and take time alike: they have one type, one name,
/// equal borders and equal parameters. Autograd segments have one type whatever they compute, so
/// each of them has a key of its own.
std::string segment_key(const Block& block, const SegmentWiring& wiring);

}  // namespace tutti
