// What a rank of a mesh has to do in a step, before any instruction is made:
//
//   cell    the schedule's: a chunk's work on one micro-batch, forward or back
//   visit   one layer of a cell
//   slot    a flight slot: the memory of a micro-batch in flight, from its chunk's forward to the
//           end of its backward
//   use     ZeRO-3 and offload: a unit that is brought into memory, whole, for some visits
//   idle    of a visit: data ranks go in step, and this one has no micro-batch there; it only meets
//           the others
//   route   where a micro-batch's gradient goes, and what is added to what after its backward
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "plan/make/homes.h"
#include "plan/make/pipeline_schedule.h"

namespace tutti {

/// A layer's work on one micro-batch, in all columns of the rank.
struct LayerVisit {
  enum class Kind : uint8_t { kForward, kBoth, kInput, kWeight };
  int chunk = 0, layer = 0;
  int micro = 0;  ///< its number in the sequence
  Kind kind = Kind::kForward;
  std::vector<int> uses;  ///< numbers of the uses that it reads
};

struct MeshUse {
  int unit = -1;
  size_t first = 0, last = 0;  ///< visits
  bool idle = true;            ///< whether all its visits are idle
};

/// Where a micro-batch's gradient goes, and what is added up after it. Levels are places in the
/// rank's fold stack (grid/grid.h).
struct MeshRoute {
  int level = 0;                           ///< -1: scratch
  std::vector<std::pair<int, int>> folds;  ///< each adds the second level to the first
  int round = 0;
  bool last = false;  ///< of the round
};

class MeshWork {
 public:
  /// `homes` must outlive it.
  explicit MeshWork(const MeshHomes& homes);

  const MeshHomes& homes;
  const SumOptions sums;
  const std::vector<Round> rounds;
  const std::vector<MicroBatch> sequence;  ///< with the turns in which the rank idles
  const bool kept;                         ///< gradients of a round are held whole until it is over
  const bool split;                        ///< backward runs in two parts
  const bool comes_back;                   ///< chunks go down the stages and up again (zbv)

  /// One route per micro-batch of the sequence.
  const std::vector<MeshRoute>& routes() const { return routes_; }
  /// How many partials the rank has at most in a round: the levels that others read.
  int partials() const { return partials_; }
  /// How many it has in one round; 0: it has no lane there.
  int partials_in(int round) const { return contributed_[round]; }

  const std::vector<LayerVisit>& visits() const { return visits_; }
  bool idle(const LayerVisit& visit) const { return sequence[visit.micro].idle(); }
  bool is_first(const LayerVisit& visit) const {
    return visit.layer == homes.places.chunks[visit.chunk].begin;
  }
  bool is_last(const LayerVisit& visit) const {
    return visit.layer + 1 == homes.places.chunks[visit.chunk].end;
  }
  /// The visit to a layer some `layers` further, on whichever rank.
  LayerVisit further(const LayerVisit& visit, int layers) const;
  int slot(const LayerVisit& visit) const { return slot_[visit.chunk][visit.micro]; }
  /// The flight slot of a micro-batch between the input part and the weight part of its backward.
  int part_slot(const LayerVisit& visit) const { return part_slot_[visit.chunk][visit.micro]; }
  /// The data slot of a micro-batch, which the chunks of the rank share.
  int data_slot(int micro) const { return data_slot_[micro]; }
  bool reads_data(int chunk) const;
  /// Whether the loader's memory is used as it is, because one micro-batch is in work at a time.
  bool lends_data() const;
  /// Whether backward computes the segment, or (recomputed_whole) all of the layer, a second time.
  bool recomputed(int layer, const SegmentShape& segment) const;
  bool recomputed_whole(int layer) const;

  const std::vector<MeshUse>& uses() const { return uses_; }
  /// How many uses can be in memory at a time; use u is in the u-th place, modulo their number.
  size_t use_slots() const { return use_slots_; }

  /// An instruction of a visit, with its lane and micro-batch.
  Instruction instruction(Op op, const LayerVisit& visit, int block = -1, int segment = -1) const;

 private:
  void make_routes();
  void add_routes(const std::vector<MicroBatch>& lane, bool ends_round, int round, int& held);
  void find_slots(const std::vector<Cell>& cells);
  void make_visits(const std::vector<Cell>& cells);
  void make_uses();
  std::vector<int> units_of(const LayerVisit& visit) const;
  size_t still_there(int unit, size_t fresh) const;

  std::vector<MeshRoute> routes_;
  int partials_ = 0;
  std::vector<int> contributed_;
  std::vector<std::vector<int>> slot_, part_slot_;  // [chunk][micro]
  std::vector<int> data_slot_;                      // by micro
  std::vector<LayerVisit> visits_;
  std::vector<MeshUse> uses_;
  size_t use_slots_ = 0;
};

}  // namespace tutti
