#include "net/membership.h"

#include <algorithm>
#include <iterator>

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

Membership joint(const Membership& a, const Membership& b, int worker) {
  std::vector<int> of_a = a.members, of_b = b.members;
  std::sort(of_a.begin(), of_a.end());
  std::sort(of_b.begin(), of_b.end());
  Membership both = b;
  both.members.clear();
  std::set_union(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                 std::back_inserter(both.members));
  both.rank = rank_of(worker, both.members);
  return both;
}

}  // namespace tutti
