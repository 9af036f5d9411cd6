// How the seconds of a transfer come about:
//
//   windows    (inproc, shm) A rank reads where the others wrote. It pays for its own copies and
//              sums at the memory's rate, and for two flags: "it is there" and "I have it".
//   messages   (tcp, between hosts) One message comes from every peer, one after the other; then
//              come the copies and sums.
#include "plan/search/prices.h"

#include <algorithm>
#include <cmath>

namespace tutti {

/// The gradient is read, the parameter and every slot are read and written.
double Prices::update(double floats, int slots) const {
  constexpr double kFloat = sizeof(float);
  return floats * kFloat * (3 + 2 * slots) / c_.update.alone;
}

/// Windows of all peers become readable at once, so their flags cost as much as one peer's;
/// messages arrive one after the other.
double Prices::arrive(int rank, const std::vector<int>& peers, double bytes) const {
  double seconds = 0, flag = 0;
  for (int peer : peers) {
    const TransportRates& rates = between(rank, peer);
    if (rates.flag > 0) {
      flag = 2 * rates.flag;
    } else if (bytes > 0) {
      seconds += message_seconds(rates, bytes);
    }
  }
  return seconds + flag;
}

/// 64 bytes go up and down a binary tree.
double Prices::meet(int ranks) const {
  bool apart = false;
  for (int host : options_.hosts) apart |= host != options_.hosts.front();
  const TransportRates& rates = c_.rates_of(apart ? kNetwork : options_.transport);
  return 2 * std::ceil(std::log2(std::max(ranks, 1))) * message_seconds(rates, 64);
}

/// For matmuls the share is measured for every number of cores at work; for memory it is a line
/// between one core and all of them. More queues than cores take turns.
double Prices::pace(Resource resource, int active) const {
  const int at_once = std::clamp(active, 1, c_.cores);
  double share = 0;
  if (resource == Resource::kMatmul) {
    share = c_.matmul[static_cast<size_t>(at_once - 1)] / c_.matmul.front();
  } else {
    const double part = c_.cores > 1 ? (at_once - 1.0) / (c_.cores - 1.0) : 0;
    share = 1 + (c_.copy.all / c_.copy.alone - 1) * part;
  }
  return active > c_.cores ? share * c_.cores / active : share;
}

}  // namespace tutti
