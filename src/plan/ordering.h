// What comes before what, over all queues of all ranks: the order of each queue, signals before the waits for them, and
// instructions that meet (reduce, gather, vote), which end only after all ranks have entered them. Serves the checker.
#pragma once

#include <string>
#include <vector>

#include "plan/program.h"

namespace tutti {

/// Where an instruction stands in a plan.
struct Place {
  int rank = 0, queue = 0, index = 0;
  bool operator==(const Place&) const = default;
};

const Instruction& at(const Plan& plan, Place place);
/// "rank 1 queue data #3 Reduce bucket 2".
std::string name_of(const Plan& plan, Place place);

class Ordering {
 public:
  /// The plan must be well-formed (check_structure). Meeting instructions that differ between ranks and cycles are
  /// added to `faults`; the ordering is then of no use.
  Ordering(const Plan& plan, std::vector<std::string>& faults);

  /// All instructions in one order that respects everything; those that meet stand together, one per rank.
  const std::vector<std::vector<Place>>& sequence() const { return sequence_; }
  /// Whether a has ended before b acts, in every interleaving.
  bool before(Place a, Place b) const;

 private:
  int stream(Place p) const { return first_stream_[p.rank] + p.queue; }
  void match_meetings(std::vector<std::string>& faults);
  void sort(std::vector<std::string>& faults);
  void number_clocks();

  const Plan& plan_;
  std::vector<int> first_stream_;                    // by rank: the number of its queue 0 among all queues
  std::vector<std::vector<std::vector<int>>> node_;  // [rank][queue][index] -> node
  std::vector<std::vector<Place>> members_;          // by node
  std::vector<std::vector<Place>> sequence_;
  // clocks_[stream][index][s]: how many instructions of stream s have ended when this one acts.
  std::vector<std::vector<std::vector<int>>> clocks_;
};

}  // namespace tutti
