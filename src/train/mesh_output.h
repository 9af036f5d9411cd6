// What evaluation reads of a forward on a mesh: Model::output, whose columns may lie on several tensor ranks.
#pragma once

#include <map>

#include "train/mesh_parts.h"
#include "train/mesh_place.h"

namespace tutti {

class OutputParts {
 public:
  /// Both must outlive it.
  OutputParts(const MeshParts& parts, const MeshPlace& place) : p_(parts), place_(place) {}

  /// For a new forward.
  void clear() { parts_.clear(); }
  /// A column's part; nothing where it is undefined.
  void add(int column, const at::Tensor& part);
  /// All of it, where columns have parts of it on the first tensor rank alone; undefined elsewhere. Collective over the
  /// tensor ranks of the last stage.
  at::Tensor whole();

 private:
  void bring();

  const MeshParts& p_;
  const MeshPlace& place_;
  std::map<int, at::Tensor> parts_;  // by column
  uint64_t turns_ = 0;
};

}  // namespace tutti
