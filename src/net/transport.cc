// The defaults of a transport without windows (tcp): it has no counters either, so whoever asks for
// one has taken a path that the plan should have ruled out.
#include "net/transport.h"

#include "base/error.h"

namespace tutti {

void Transport::raise(int index, uint64_t) {
  TUTTI_CHECK(false, "{} has no windows: raise({})", name(), index);
}

// Transports that have windows keep the patience.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void Transport::await(int peer, int index, uint64_t, Patience, std::string_view what) {
  TUTTI_CHECK(false, "{} has no windows: await of flag {} of rank {} for {}", name(), index, peer,
              what);
}

}  // namespace tutti
