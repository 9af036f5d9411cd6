// The commit of a step on a rank of a mesh: the vote, an Update of every unit that is at home
// here (what is offloaded is fetched before it and put back after it), and new values for those
// that hold copies.
#pragma once

#include "plan/make/mesh_memory.h"

namespace tutti {

class MeshCommit {
 public:
  /// All must outlive it.
  MeshCommit(const MeshWork& work, MeshMemory& state, MeshBuilder& program);
  /// Waits, at the start of a step, for what others borrowed in the step before: until then nothing
  /// is written there.
  void acquire();
  void commit();

 private:
  Spread spread(int unit) const { return spread_of(options_, homes_.places, unit); }
  void vote();
  void travel(Op op, int unit, size_t turn);
  void update(int unit, size_t turn);
  std::vector<Operand> gradients(int unit);
  void release(int parcel);
  void refresh(int parcel, QueueUse queue);

  const MeshWork& work_;
  const MeshHomes& homes_;
  const MeshOptions& options_;
  MeshMemory& state_;
  MeshBuilder& program_;
};

}  // namespace tutti
