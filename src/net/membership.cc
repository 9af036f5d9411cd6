// Memberships are made from one another by value. Hosts and addresses belong to workers, so an
// epoch changes only who is a member and in which order.
#include "net/membership.h"

#include <algorithm>
#include <numeric>

#include "grid/grid.h"

namespace tutti {

namespace {

int rank_of(int worker, const std::vector<int>& members) {
  const auto found = std::find(members.begin(), members.end(), worker);
  return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

}  // namespace

std::vector<int> Membership::rank_hosts() const {
  std::vector<int> by_rank;
  for (int member : members) by_rank.push_back(hosts[member]);
  return by_rank;
}

Membership first_epoch(int workers, int worker, int hosts, const std::string& address) {
  Membership first;
  for (int w = 0; w < workers; ++w) {
    first.members.push_back(w);
    first.hosts.push_back(host_of(w, workers, hosts));
    first.addresses.push_back(address);
  }
  first.rank = worker;
  return first;
}

Membership next_epoch(const Membership& now, std::vector<int> members, int worker) {
  Membership next = now;
  next.epoch = now.epoch + 1;
  next.rank = rank_of(worker, members);
  next.members = std::move(members);
  return next;
}

Membership everybody(const Membership& next, int worker) {
  Membership all = next;
  all.members.resize(next.hosts.size());
  std::iota(all.members.begin(), all.members.end(), 0);
  all.rank = worker;
  return all;
}

}  // namespace tutti
