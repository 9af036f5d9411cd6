// Builds a rank's program. Instructions are added in an order that would be right on one queue,
// each to its own queue; what must wait for what on another queue follows from the buffers that
// both touch (a dependence graph by reads and writes, as compilers make it).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/ir/program.h"

namespace tutti {

class MeshBuilder {
 public:
  /// Instructions of a queue that the rank does not have go to compute.
  MeshBuilder(int rank, const std::vector<QueueUse>& queues);

  int add_buffer(Buffer buffer);
  int add_buffer(std::string name, BufferKind kind, int64_t bytes, int unit = -1);
  /// The buffer of that name, made when first asked for; it becomes at least this large.
  int named(const std::string& name, BufferKind kind, int64_t bytes, int unit = -1);
  Buffer& at(int buffer) { return program_.buffers[buffer]; }

  /// An instruction without an id gets one of this rank's own. It waits until all
  /// instructions that the queue `after` has so far are over; kCompute stands for no such queue.
  void add(QueueUse use, Instruction instruction, QueueUse after = QueueUse::kCompute);
  /// Gives windows their places. The builder is of no use afterwards.
  Program finish();
  const std::vector<Queue>& queues() const { return program_.queues; }

 private:
  struct Spot {
    int queue = -1, index = -1;
  };
  struct History {
    Spot writer;
    std::vector<Spot> readers;  // since then, the last one of each queue
  };
  void wait_for(const Spot& earlier, int queue, Instruction& instruction);

  Program program_;
  std::vector<int> queue_of_use_ = std::vector<int>(kQueueUses, 0);
  std::map<std::string, int> names_;
  std::vector<History> history_;  // by buffer
  // [queue][other]: how many of the other's instructions it has waited for.
  std::vector<std::vector<int>> waited_for_;
  uint32_t next_id_ = 1;
};

}  // namespace tutti
