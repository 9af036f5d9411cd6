// The transport of processes on one host. Every rank makes two segments: its window, which the
// others can only read, and a control area that all can write, with its counters, the signals that
// its waiters sleep on, and a ring for messages from every other rank.
#pragma once

#include <memory>

#include "net/make.h"
#include "net/streamed.h"

namespace tutti {

/// Reaches the ranks of `options.hosts` that are on my host.
std::unique_ptr<Streamed> make_shm(const TransportOptions& options, const Epoch& epoch,
                                   Rendezvous& rendezvous, Clock& clock, const Cancel* cancel,
                                   Patience patience);

}  // namespace tutti
