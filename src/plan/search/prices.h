// The rates of one machine (plan/search/calibration.h) as prices: the seconds of a copy, a sum, an
// update or a message. Pure functions.
#pragma once

#include <vector>

#include "plan/search/cost.h"

namespace tutti {

class Prices {
 public:
  explicit Prices(const CostOptions& options) : options_(options) {}
  Prices(const Prices&) = delete;

  /// `bytes` are those read and those written, together.
  double copy(double bytes) const { return bytes / c_.copy.alone; }
  double fold(double bytes) const { return bytes / c_.fold.alone; }
  double update(double floats, int slots) const;
  double tier(double bytes) const { return bytes / c_.tier; }

  /// A message between two ranks.
  double message(int a, int b, double bytes) const { return message_seconds(between(a, b), bytes); }
  /// Seconds until `bytes` from every peer are here, without the copies and sums made of them.
  double arrive(int rank, const std::vector<int>& peers, double bytes) const;
  /// Seconds of a meeting of so many ranks in which each tells a few numbers, such as the vote.
  double meet(int ranks) const;

  /// The share of its speed alone that each of `active` queues of a host has left.
  double pace(Resource resource, int active) const;

 private:
  int host(int rank) const {
    return options_.hosts.empty() ? 0 : options_.hosts[static_cast<size_t>(rank)];
  }
  const TransportRates& between(int a, int b) const {
    return c_.rates_of(host(a) == host(b) ? options_.transport : kNetwork);
  }

  CostOptions options_;
  const Calibration& c_ = options_.calibration;
};

}  // namespace tutti
