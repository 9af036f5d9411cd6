// What comes before what, over all queues of all ranks (the happens-before relation): the order
// of each queue, signals before the waits for them, and instructions that meet (reduce, gather,
// vote, a send and its receive), which end only after all of their ranks have entered them.
// Serves the checkers.
#pragma once

#include <string>
#include <vector>

#include "plan/ir/program.h"

namespace tutti {

/// Where an instruction is in a plan.
struct Place {
  int rank = 0, queue = 0, index = 0;
  bool operator==(const Place&) const = default;
};

const Instruction& at(const Plan& plan, Place place);
/// "rank 1 queue data #3 Reduce parcel 2".
std::string name_of(const Plan& plan, Place place);

class Ordering {
 public:
  /// The plan must be well-formed (check_structure). Meeting instructions that differ between ranks
  /// and cycles are added to `faults`; the ordering is then of no use.
  Ordering(const Plan& plan, std::vector<std::string>& faults);

  /// All instructions in one order that respects everything; those that meet are together,
  /// one per rank.
  const std::vector<std::vector<Place>>& sequence() const { return sequence_; }
  /// Whether a has ended before b acts, in every interleaving.
  bool before(Place a, Place b) const { return clock(b)[stream(a)] > a.index; }
  /// Whether a has ended before b's rank comes to b: for what meets, before it gives what it has.
  bool before_entry(Place a, Place b) const;
  /// Whether something that `rank` does in the same step has ended before b acts.
  bool follows(Place b, int rank) const;
  /// Whether a has ended before `rank` ends the step.
  bool ends_within(Place a, int rank) const { return last_[rank][stream(a)] > a.index; }

 private:
  int stream(Place p) const { return first_stream_[p.rank] + p.queue; }
  size_t clock_place(Place p) const {
    return static_cast<size_t>(first_clock_[stream(p)] + p.index) * static_cast<size_t>(streams_);
  }
  const int* clock(Place p) const { return clocks_.data() + clock_place(p); }
  void match_meetings(std::vector<std::string>& faults);
  void join(std::vector<Place> places);
  void sort(std::vector<std::string>& faults);
  void number_clocks();

  const Plan& plan_;
  // A rank's entry is the number of its queue 0 among all queues (streams).
  std::vector<int> first_stream_;
  std::vector<std::vector<std::vector<int>>> node_;  // [rank][queue][index] -> node
  std::vector<std::vector<Place>> members_;          // by node
  std::vector<std::vector<Place>> signalled_by_;     // by rank and event
  std::vector<std::vector<Place>> sequence_;
  int streams_ = 0;
  std::vector<int> first_clock_;  // by stream: the number of its first instruction among all
  // Vector clocks. Per instruction and stream: how many of the stream have ended when it acts.
  std::vector<int> clocks_;
  // By rank and stream: how many have ended when the rank's step has.
  std::vector<std::vector<int>> last_;
};

}  // namespace tutti
