// Who takes part in an epoch of a run, as one worker sees it. A value: while an epoch lasts nothing
// in it changes; another membership is another epoch.
//
//   worker   a process (or thread) that was started for the run; its number is its for good
//   rank     a worker's place among the members of an epoch
//   spare    a worker that is no member of the epoch
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

struct Membership {
  uint32_t epoch = 0;
  std::vector<int> members;            ///< by rank: its worker
  int rank = -1;                       ///< this worker's; -1: it is a spare
  std::vector<int> hosts;              ///< by worker: those of one host share memory
  std::vector<std::string> addresses;  ///< by worker: where it listens for other hosts

  int size() const { return static_cast<int>(members.size()); }
  bool takes_part() const { return rank >= 0; }
  std::vector<int> rank_hosts() const;  ///< by rank
  bool operator==(const Membership&) const = default;
};

/// The first epoch: worker w is rank w, and the workers are on `hosts` hosts in their order.
Membership first_epoch(int workers, int worker, int hosts, const std::string& address);
/// The epoch after `now`, with these members, as `worker` sees it.
Membership next_epoch(const Membership& now, std::vector<int> members, int worker);
/// All workers of the run in the order of their numbers, spares included, as `worker` sees them:
/// who meets when an epoch ends and `next` begins. The epoch is that of `next`.
Membership everybody(const Membership& next, int worker);

}  // namespace tutti
