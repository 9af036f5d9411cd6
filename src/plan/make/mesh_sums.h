// From the gradients of micro-batches to a unit's sum in its owners' slices: folds after each
// backward, and a Reduce (a reduce-scatter) when all that a round adds to the unit is there.
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "plan/make/mesh_memory.h"

namespace tutti {

class MeshSums {
 public:
  /// All must outlive it.
  MeshSums(const MeshWork& work, MeshMemory& state, MeshBuilder& program);

  /// Adds what follows the backward of a layer (its weight part, if there are two parts).
  void after(const LayerVisit& visit);

 private:
  template <class F>
  void fold(const LayerVisit& visit, int unit, F&& at_level);
  bool wrote(int block, int unit, int round);
  bool completes(int unit, int round);
  void reduce(const Parcel& parcel, int round);
  void reduce_by_hosts(const Parcel& parcel);
  void add_reduce(Instruction reduce, const Parcel& parcel, uint32_t number);
  std::vector<Operand> contributions(int unit, int round);
  void add_sums(Instruction& reduce, int unit);
  void norm(const Parcel& parcel);
  void gather_gradient(const Parcel& parcel);

  const MeshWork& work_;
  const MeshHomes& homes_;
  MeshMemory& state_;
  MeshBuilder& program_;
  // (unit, round): blocks that have still to write its gradient here.
  std::map<std::pair<int, int>, std::set<int>> writers_;
  // (parcel, round): how many of its units are complete.
  std::map<std::pair<int, int>, size_t> complete_;
};

}  // namespace tutti
