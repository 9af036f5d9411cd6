// Messages between the stages of a pipeline: forward, the borders at the ends of chunks;
// back, their gradients.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/make/mesh_borders.h"

namespace tutti {

/// Each function adds what its visit needs: nothing if the neighbour is on the same rank, or if
/// there is none.
class MeshMessages {
 public:
  /// All must outlive it.
  MeshMessages(const MeshWork& work, MeshBorders& borders, MeshBuilder& program);

  void receive_activations(const LayerVisit& first);
  void send_activations(const LayerVisit& last);
  void receive_gradients(const LayerVisit& last);
  void send_gradients(const LayerVisit& first);

 private:
  template <class F>
  void each_border(const LayerVisit& end, F&& f);
  void add(Op op, QueueUse queue, const LayerVisit& visit, int buffer, int64_t bytes, uint32_t id,
           int chunk);

  const MeshWork& work_;
  const MeshHomes& homes_;
  MeshBorders& borders_;
  MeshBuilder& program_;
  size_t widest_ = 0;  // tensors at the end of a layer, at most
};

}  // namespace tutti
