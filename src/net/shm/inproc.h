// The transport of thread ranks: a receive copies straight from the sender's span, and windows are
// plain memory. It has no thread and no buffer of its own.
#pragma once

#include <memory>

#include "net/make.h"

namespace tutti {

std::unique_ptr<Transport> make_inproc(const TransportOptions& options, Rendezvous& rendezvous,
                                       Clock& clock, const Cancel* cancel, Patience patience);

}  // namespace tutti
