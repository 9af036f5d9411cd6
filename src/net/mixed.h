// shm inside a host and tcp between hosts, as one transport: a message goes by whichever of the two
// reaches the peer. Windows are those of shm.
#pragma once

#include <memory>
#include <vector>

#include "net/streamed.h"

namespace tutti {

std::unique_ptr<Transport> make_mixed(std::vector<int> hosts, std::unique_ptr<Streamed> shm,
                                      std::unique_ptr<Streamed> tcp);

}  // namespace tutti
