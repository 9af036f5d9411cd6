// The transport between hosts: several connections per pair of ranks, and one I/O thread per rank.
// Bytes go from the sender's span to the socket, and from the socket to the span of the posted
// receive, with no copy of our own in between.
#pragma once

#include <memory>
#include <vector>

#include "net/make.h"
#include "net/streamed.h"

namespace tutti {

/// Reaches every rank r for which reach[r] is true.
std::unique_ptr<Streamed> make_tcp(const TransportOptions& options, const Epoch& epoch,
                                   const std::vector<bool>& reach, Rendezvous& rendezvous,
                                   Clock& clock, const Cancel* cancel, Patience patience);

}  // namespace tutti
