#include "net/transport.h"

#include "base/error.h"

namespace tutti {

void Transport::raise(int index, uint64_t) {
  TUTTI_CHECK(false, "{} has no windows: raise({})", name(), index);
}

void Transport::await(int peer, int index, uint64_t, Deadline, std::string_view what) {
  TUTTI_CHECK(false, "{} has no windows: await of flag {} of rank {} for {}", name(), index, peer,
              what);
}

}  // namespace tutti
