// Makes the transports of an epoch. Collective: all ranks call it with equal arguments (an Error
// names who differs).
#pragma once

#include <memory>
#include <vector>

#include "net/rendezvous/rendezvous.h"
#include "net/transport.h"

namespace tutti {

struct TransportOptions {
  std::string kind = "shm";  ///< inproc | shm | tcp
  /// host of every rank; empty: all on one. Windows reach only ranks of the same host
  std::vector<int> hosts;
  /// my window (ranks may differ); allocated for real here, or Error: never a SIGBUS later
  size_t window_bytes = 0;
  /// that of a transport before, of the same kind and so many bytes; null: a new one
  std::shared_ptr<Window> window;
  std::string address = "127.0.0.1";  ///< tcp: where to listen
  /// tcp: first port (rank r listens on port + r); 0: any. A busy port is an Error naming it
  int port = 0;
  int connections = 2;  ///< tcp: per pair of ranks; large messages are striped over them
};

/// A run's token, which nobody can guess, from the system.
uint64_t new_token();

/// What a rank tells all others first: its window's size on a line of its own, then what must be
/// equal on all ranks.
std::string transport_terms(const TransportOptions& options, const Epoch& epoch);

/// kind "shm" with several hosts makes shm inside a host and tcp between: messages go by whichever
/// reaches the peer.
std::unique_ptr<Transport> make_transport(const TransportOptions& options, const Epoch& epoch,
                                          Rendezvous& rendezvous, Clock& clock,
                                          const Cancel* cancel, Deadline deadline);

}  // namespace tutti
