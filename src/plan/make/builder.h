// Builds a rank's program: instructions are added in an order that would be right on one queue, each to its queue; what
// must wait for what on another queue follows from the buffers that both touch.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/ir/program.h"

namespace tutti {

/// Buffers that an instruction of a mesh's program touches: its `reads` and `writes`, and what its flow says. One that
/// it uses up (a partial sum that an exchange adds to, temporaries) counts as written.
struct Accesses {
  std::vector<int> reads, writes;
};
Accesses accesses_of(const Instruction& instruction);

class MeshProgram {
 public:
  /// Queues by what they are for; those that the rank does not have are compute. Where a stage has two neighbours on
  /// one side of a chunk (zbv goes up and down again), messages of the second have queues of their own, kBack behind
  /// the first's: in one queue they could wait for each other in a circle.
  enum QueueUse {
    kCompute,
    kData,
    kActivationsIn,
    kActivationsOut,
    kGradientsIn,
    kGradientsOut,
    kTier,
    kShared,
    kUses
  };
  static constexpr int kBack = 6;

  MeshProgram(int rank, bool overlap, bool pipeline, bool back, bool tier, bool shared);

  int add_buffer(Buffer buffer);
  int add_buffer(std::string name, BufferKind kind, int64_t bytes, int unit = -1);
  /// The buffer of that name, at least this large; made when first asked for.
  int named(const std::string& name, BufferKind kind, int64_t bytes, int unit = -1);
  Buffer& at(int buffer) { return program_.buffers[buffer]; }

  /// Without an id it gets one of this rank's own. `behind`: a queue all of whose instructions so far must have ended.
  void add(int use, Instruction instruction, int behind = -1);
  /// Gives windows their places.
  Program finish();

 private:
  struct Access {
    int queue = -1, index = -1;
  };
  struct History {
    Access writer;
    std::vector<Access> readers;  // since
  };
  void wait_for(const Access& earlier, int queue, Instruction& instruction);

  Program program_;
  std::vector<int> queue_of_use_;
  std::map<std::string, int> names_;
  std::vector<History> history_;              // by buffer
  std::vector<std::vector<int>> waited_for_;  // [queue][other]: how many of the other's instructions it has waited for
  uint32_t next_id_ = 1;
};

}  // namespace tutti
