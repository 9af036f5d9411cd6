// Where what belongs to units is stored on a rank of a mesh: parameters, moments, copies of shared
// parameters, gradients and the stacks of their sums; and the step's few numbers.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "plan/make/mesh_builder.h"
#include "plan/make/work.h"

namespace tutti {

class MeshMemory {
 public:
  /// Both must outlive it. Places parameters, moments and copies at once; gradients are made when
  /// first asked for.
  MeshMemory(const MeshWork& work, MeshBuilder& program);

  const int losses, squares;
  /// Squares of what is shared over stages, whose sums come on a queue of their own: two queues
  /// never add to one place.
  const int shared_squares;
  const int verdict;

  /// Where a unit's values are at home.
  int parameter(int unit) const { return parameter_.at(unit); }
  int moment(int unit) const { return moment_.at(unit); }
  /// Where a visit reads a unit's parameters: at home, or where a use brings them.
  int parameters(int unit, const LayerVisit& visit) const;
  /// Where a use brings its unit.
  int brought(size_t use) const { return brought_[use % brought_.size()]; }
  /// A block's copy of parameters whose owner is on other ranks.
  int copy(int block, int owner) const { return copy_.at({block, owner}); }
  /// Where the turn-th Update finds values; kFetchAhead units are fetched before they are needed.
  static constexpr size_t kFetchAhead = 2;
  int updated_parameters(int unit, size_t turn);
  int updated_moments(int unit, size_t turn);

  /// The gradient of a unit at a level of the rank's fold stack; level -1: scratch.
  int gradient(int unit, int level, int round);
  /// The gradient of an owner's parameters, if a block's is stored apart.
  int gradient_apart(int block, int owner, int level);
  /// Where a block's backward writes: its own unit's gradient, then those of the owners that it
  /// shares parameters of.
  std::vector<UnitBuffer> gradients(int block, const MeshRoute& route);
  /// Where this rank makes its slice of a unit's sum over one of its host's subtrees: in place of
  /// what it adds to that subtree, or in memory of its own.
  int host_sum(int unit, Range tree);
  /// The owner's stack for a unit's sum.
  std::vector<int> stack(int unit);

 private:
  void place_unit(int unit);
  void place_copies();
  void place_uses();
  int passing(int unit, int round, int64_t bytes);
  int window(int made, int level);
  int64_t further_floats(int unit) const;

  const MeshWork& work_;
  const MeshHomes& homes_;
  const ModelShape& model_;
  const MeshOptions& options_;
  MeshBuilder& program_;
  std::map<int, int> parameter_, moment_;
  std::map<std::pair<int, int>, int> copy_;  // (block, owner)
  std::vector<int> brought_;                 // by slot of uses
  // (unit, round): which of the windows its gradient passes through.
  std::map<std::pair<int, int>, int> passing_;
  std::map<int, int> passed_;  // by column: how many gradients have passed through
};

}  // namespace tutti
