// Makes the connections of a tcp transport: every rank listens, the higher rank of a pair dials,
// and only holders of the run's token are admitted. The listener is gone when this returns.
#pragma once

#include <vector>

#include "net/make.h"

namespace tutti {

struct TcpMesh {
  /// [peer][connection]; none for myself and for unreached ranks. Non-blocking
  std::vector<std::vector<Fd>> sockets;
  /// holders of the token that belonged to another epoch or plan
  uint64_t refused = 0;
};

/// Connects to every rank r with reach[r]. Collective: all ranks of the rendezvous call it.
TcpMesh connect_mesh(const TransportOptions& options, const Epoch& epoch,
                     const std::vector<bool>& reach, Rendezvous& rendezvous, Clock& clock,
                     const Cancel* cancel, Deadline deadline);

}  // namespace tutti
