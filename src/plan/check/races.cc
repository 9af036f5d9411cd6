// Kept per buffer, along the ordering's sequence: the last write, and the reads since then. Of
// several accesses on one queue the last one stands for those before it.
//
// A Reduce ends when its windows are free again: it counts as an access of the rank itself. A
// Gather does not: its sources may be read until those who copy from them have ended it, so the
// reader's Gather is an access, too, and a write of the next step must know of its end. So is an
// Update that borrows: what it reads is lent until its rank has released the parcel.
#include "plan/check/races.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/check/check_transfers.h"

namespace tutti {

namespace {

struct History {
  std::vector<Place> writes, reads;
};

struct RemoteRead {
  int rank, buffer;  // what is read
  Place reader;
};

class Races {
 public:
  Races(const Plan& plan, const Ordering& ordering, const TouchedByAll& touched)
      : plan_(plan), ordering_(ordering), touched_(touched) {
    for (const Program& program : plan.programs) {
      history_.emplace_back(program.buffers.size());
      written_.emplace_back(program.buffers.size());
    }
  }

  std::vector<std::string> check() {
    // Within a step, accesses are compared as they come; across steps when all are known.
    for (const auto& places : ordering_.sequence()) {
      together_ = &places;
      for (const Place& place : places) visit(place);
      if (at(plan_, places[0]).op == Op::kGather) read_windows(places);
    }
    check_next_step();
    check_borrows();
    return std::move(faults_);
  }

 private:
  /// An instruction's accesses of its own rank's buffers, then of those that it borrows.
  void visit(Place place) {
    const Touched& own = touched_[place.rank][place.queue][place.index];
    for (int b : own.reads) read(place, place, place.rank, b);
    for (int b : own.writes) write(place, b);
    for (const Operand& operand : at(plan_, place).operands) {
      if (operand.rank < 0) continue;
      read(place, place, operand.rank, operand.buffer);
      borrowed_.push_back({operand.rank, operand.buffer, place});
    }
  }

  /// A Gather reads the windows of the others. What it reads there has to be ready when the giver
  /// comes to the Gather.
  void read_windows(const std::vector<Place>& places) {
    const auto place_of = [&](int rank) {
      return *std::find_if(places.begin(), places.end(),
                           [&](const Place& p) { return p.rank == rank; });
    };
    for (const auto& copy : plan_.copies[at(plan_, places[0]).transfer].copies) {
      if (copy.from == copy.to) continue;
      const int buffer = window_buffer(plan_.programs[copy.from], copy.offset);
      const Place reader = place_of(copy.to);
      read(reader, place_of(copy.from), copy.from, buffer);
      remote_.push_back({copy.from, buffer, reader});
    }
  }

  /// A read of a buffer of `rank`. `ready`: what was written before this is there for `reader`.
  void read(Place reader, Place ready, int rank, int buffer) {
    History& h = history_[rank][buffer];
    for (const Place& w : h.writes) require(w, ready, reader, rank, buffer);
    keep(h.reads, reader);
  }

  /// A write comes after the write before it and all reads since then. What is read in the same
  /// meeting stays in the list: members read each other's slices there.
  void write(Place place, int buffer) {
    History& h = history_[place.rank][buffer];
    for (const Place& w : h.writes) require(w, place, place, place.rank, buffer);
    for (const Place& r : h.reads) require(r, place, place, place.rank, buffer);
    std::erase_if(h.reads, [&](const Place& r) { return !meeting(r); });
    h.writes = {place};
    if (plan_.programs[place.rank].buffers[buffer].window)
      written_[place.rank][buffer].push_back(place);
  }

  /// Replaces an earlier access of the same queue.
  static void keep(std::vector<Place>& list, Place place) {
    for (Place& old : list) {
      if (old.rank == place.rank && old.queue == place.queue) {
        old = place;
        return;
      }
    }
    list.push_back(place);
  }

  /// Whether an instruction is a member of the meeting at hand.
  bool meeting(Place p) const {
    return std::find(together_->begin(), together_->end(), p) != together_->end();
  }

  /// Finds fault unless `first` has ended before `second` acts.
  void require(Place first, Place second, Place who, int rank, int buffer) {
    if (first == second || first == who || ordering_.before(first, second)) return;
    if (meeting(first)) return;  // members of a meeting touch different slices
    fault(first, who, rank, buffer, "are not ordered");
  }
  void fault(Place first, Place second, int rank, int buffer, const char* what) {
    faults_.push_back(fmt::format("{} and {} {}, both touch '{}' of rank {}", name_of(plan_, first),
                                  name_of(plan_, second), what,
                                  plan_.programs[rank].buffers[buffer].name, rank));
  }

  /// What others borrow is theirs until they release it: whoever lent it acquires it before writing
  /// there again, in the next step.
  void check_borrows() {
    for (const RemoteRead& borrow : borrowed_) {
      const int parcel = parcel_of(borrow.reader);
      if (!released(borrow.reader, parcel)) {
        faults_.push_back(name_of(plan_, borrow.reader) + ": what it borrows is never released");
        continue;
      }

      // Every write of the lender is an Acquire of the parcel or comes after one.
      std::vector<Place> acquired;
      for (const Place& w : written_[borrow.rank][borrow.buffer])
        if (at(plan_, w).op == Op::kAcquire && at(plan_, w).parcel == parcel) acquired.push_back(w);
      const auto after = [&](const Place& w) {
        return std::any_of(acquired.begin(), acquired.end(),
                           [&](const Place& a) { return a == w || ordering_.before(a, w); });
      };
      for (const Place& w : written_[borrow.rank][borrow.buffer])
        if (!after(w))
          fault(borrow.reader, w, borrow.rank, borrow.buffer, "of the next step are not ordered");
    }
  }
  /// The parcel of sums that an Update's unit is in.
  int parcel_of(Place update) const {
    for (size_t p = 0; p < plan_.parcels.size(); ++p)
      for (const UnitRange& part : plan_.parcels[p])
        if (part.unit == at(plan_, update).block) return static_cast<int>(p);
    return -1;
  }
  /// Whether exactly one Release of the parcel follows the reader on its rank.
  bool released(Place reader, int parcel) const {
    int releases = 0;
    const auto& queues = plan_.programs[reader.rank].queues;
    for (int q = 0; q < static_cast<int>(queues.size()); ++q)
      for (int k = 0; k < static_cast<int>(queues[q].instructions.size()); ++k) {
        const Instruction& i = queues[q].instructions[k];
        if (i.op != Op::kRelease || i.parcel != parcel) continue;
        if (!ordering_.before(reader, {reader.rank, q, k})) return false;
        ++releases;
      }
    return releases == 1;
  }

  /// A rank begins its next step when its own queues have ended this one. If a reader's Gather need
  /// not have ended by then, a write of the next step has to follow something that the reader's
  /// rank does in that step, for that rank has then ended this one. A write by the same Gather
  /// meets the reader again.
  void check_next_step() {
    for (const RemoteRead& read : remote_) {
      if (ordering_.ends_within(read.reader, read.rank)) continue;
      for (const Place& w : written_[read.rank][read.buffer]) {
        if (at(plan_, w).id == at(plan_, read.reader).id || ordering_.follows(w, read.reader.rank))
          continue;
        fault(read.reader, w, read.rank, read.buffer, "of the next step are not ordered");
      }
    }
  }
  const Plan& plan_;
  const Ordering& ordering_;
  const TouchedByAll& touched_;
  std::vector<std::vector<History>> history_;             // [rank][buffer]
  std::vector<std::vector<std::vector<Place>>> written_;  // [rank][buffer]: all writes into windows
  std::vector<RemoteRead> remote_, borrowed_;
  const std::vector<Place>* together_ = nullptr;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> check_races(const Plan& plan, const Ordering& ordering,
                                     const TouchedByAll& touched) {
  return Races(plan, ordering, touched).check();
}

}  // namespace tutti
