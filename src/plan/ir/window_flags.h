// How many counters a rank has next to its window. A plan deals them out (plan/ir/tags.h), and a
// transport provides them (net/transport.h).
#pragma once

namespace tutti {

inline constexpr int kWindowFlags = 4096;

}  // namespace tutti
