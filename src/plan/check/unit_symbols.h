// Parameters, gradients and moments, as symbols: for every buffer, which floats of which unit it
// holds, and what they are worth. Part of plan/check/values.h.
//
//   source   who adds to a unit's gradient: its own block, then every further user of a shared
//            parameter, in the order of SumTransfer::sources
//   part     what one segment of a source writes: an expression over (lane, micro)
//   piece    floats of gradient space whose parts, or version, are the same
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plan/check/check_transfers.h"
#include "plan/check/expressions.h"
#include "plan/check/flow.h"

namespace tutti {

struct UnitPiece {
  Range range;
  /// A gradient has an entry per part. Parameters and moments have one: their version, which is 0,
  /// or 1 once they are updated.
  std::vector<int> worth;
};

/// What a buffer holds of a unit, in ascending order.
struct UnitHolding {
  int unit = -1;
  BufferKind kind = BufferKind::kWork;
  std::vector<UnitPiece> pieces;

  void reset(int new_unit, BufferKind new_kind);
  /// Cuts pieces so that `range` is covered by whole ones; where there was nothing,
  /// there is `fresh`.
  void cut(Range range, const std::vector<int>& fresh);
  /// Makes the range one piece of this worth.
  void write(Range range, const std::vector<int>& worth);
  /// The pieces over `range`, cut to it; empty if they do not cover it.
  std::vector<UnitPiece> over(Range range) const;
};

class UnitSymbols {
 public:
  UnitSymbols(const Plan& plan, const ModelShape& model, const Ordering& ordering,
              PlaceFaults& faults);
  /// A value of another kind was written there.
  void forget(int rank, int b) { holding(rank, b).reset(-1, BufferKind::kWork); }
  /// Losses, squares and the verdict have buffers of their own: only the ops that make them may
  /// write there, through an operand (`word`).
  void guard(Place place, int b, bool word);
  /// One function for each op, called in an order that respects everything; those that
  /// meet come together.
  void need_parameters(Place place);
  void write_gradients(Place place);
  void fold(Place place);
  void reduce(const std::vector<Place>& places);
  void gather(const std::vector<Place>& places);
  void norm(Place place);
  void vote(Place place);
  void update(Place place);
  void move(Place place);
  void mark_loss(Place place);
  /// Faults that are seen only when the step is over.
  void end(std::vector<std::string>& faults);

 private:
  struct Source {
    int block = 0;
    Range to, stored;  ///< floats of the unit; where its gradient is in gradient space
    int first_part = 0, parts = 0;
  };
  struct Unit {
    std::vector<Source> sources;
    int parts = 0;
    std::vector<int> norms;      ///< by range of its sum's owners
    std::map<int, int> updates;  ///< by rank
  };
  const Buffer& buffer(int rank, int b) const { return plan_.programs[rank].buffers[b]; }
  UnitHolding& holding(int rank, int b) { return holdings_[rank][b]; }
  std::vector<int> units_of(int block, bool gradients) const;
  int level_buffer(const Instruction& reduce, int rank, int unit, int level) const;
  /// Whether the gradient there is the job's sum; if not, a fault says why.
  bool total_over(Place place, int b, int unit, Range range) {
    return total_over(place, b, unit, range, place);
  }
  /// The same for a buffer of the rank of `place`, on behalf of `who`, where faults are seen.
  bool total_over(Place place, int b, int unit, Range range, Place who);
  void check_gradients(Place update, Range range);
  /// Whether a buffer holds this version of a unit's values over the whole range.
  bool version_over(int rank, int b, int unit, BufferKind kind, Range range, int version);
  using Levels = std::vector<std::vector<int>>;  // by level: the worth of every part of a slice
  /// What the stack of an owner holds before a round.
  Levels stack_of(const Instruction& reduce, int rank, int unit, Range slice, int levels);
  /// The additions of a round, on `levels`.
  void add_round(Place place, const SumTransfer& transfer, const UnitSum& sum, Range slice,
                 Levels& levels);
  void reduce(const std::vector<Place>& places, const SumTransfer& transfer, const UnitSum& sum);
  void return_sums(const std::vector<Place>& places, const UnitSum& sum);
  bool lands_right(const Buffer& target, int unit, Range floats, int64_t lands) const;
  /// What a term brings for a range of its source.
  std::vector<int> contribution(Place place, const SumSource::Term& term, Range at_term, int unit);

  const Plan& plan_;
  const ModelShape& model_;
  const Ordering& ordering_;
  PlaceFaults& faults_;
  Expressions expressions_;
  int expected_ = 0;
  std::vector<Unit> units_;
  std::vector<std::vector<UnitHolding>> holdings_;  // [rank][buffer]
  struct Commit {
    std::vector<Place> before;      // what the vote must follow
    int losses = -1, verdict = -1;  // buffers
    std::vector<int> squares;       // by queue: where its Norms add to; -1: it has none
    std::vector<int> counted;       // what the vote takes for squares
    std::vector<Place> votes;
  };
  std::vector<Commit> commits_;  // by rank
};

}  // namespace tutti
