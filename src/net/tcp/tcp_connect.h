// Makes the connections of a tcp transport: every rank listens, the higher rank of a pair dials,
// and only those who hold the run's token are admitted. The listener is closed when this returns.
#pragma once

#include <vector>

#include "net/make.h"

namespace tutti {

struct TcpSockets {
  /// [peer][connection]; empty for myself and for ranks that are not reached. Non-blocking
  std::vector<std::vector<Fd>> sockets;
  /// connections whose rank held the token but belonged to another epoch or plan
  uint64_t refused = 0;
};

/// Connects to every rank r for which reach[r] is true. Collective: all ranks of the rendezvous
/// call it.
TcpSockets connect_all(const TransportOptions& options, const Epoch& epoch,
                       const std::vector<bool>& reach, Rendezvous& rendezvous, Clock& clock,
                       const Cancel* cancel, Patience patience);

}  // namespace tutti
