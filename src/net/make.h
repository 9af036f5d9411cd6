// Makes the transports of an epoch. This is collective: all ranks call it with equal arguments, and
// an Error names the rank that differs.
#pragma once

#include <memory>
#include <vector>

#include "net/rendezvous/rendezvous.h"
#include "net/transport.h"

namespace tutti {

struct TransportOptions {
  std::string kind = "shm";  ///< inproc | shm | tcp
  /// host of every rank; empty: all are on one. Windows reach only ranks of the same host
  std::vector<int> hosts;
  /// bytes of my window (ranks may differ). All of it is allocated when it is made, or an Error is
  /// thrown: a page that cannot be had must not end in SIGBUS later
  size_t window_bytes = 0;
  /// the window of an earlier transport of the same kind, of as many bytes, to be shown again;
  /// null: a new one is made
  std::shared_ptr<Window> window;
  std::string address = "127.0.0.1";  ///< tcp: where to listen
  /// tcp: the first port (rank r listens on port + r); 0: any.
  /// A busy port is an Error that names it
  int port = 0;
  int connections = 2;  ///< tcp: per pair of ranks; large messages are striped over them
};

/// A run's token, drawn from the system's random numbers, so that nobody can guess it.
uint64_t new_token();

/// What a rank first tells all others: its window's size on a line of its own, then what must be
/// equal on all ranks.
std::string transport_terms(const TransportOptions& options, const Epoch& epoch);

/// The transports that connect ranks in the host's memory.
std::vector<std::string> transport_names();

/// Of kind "shm" with several hosts it makes shm inside a host and tcp between hosts, as one
/// transport (net/mixed.h).
std::unique_ptr<Transport> make_transport(const TransportOptions& options, const Epoch& epoch,
                                          Rendezvous& rendezvous, Clock& clock,
                                          const Cancel* cancel, const Patience& patience);

}  // namespace tutti
