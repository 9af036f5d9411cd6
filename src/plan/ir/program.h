// The plan: one program per rank, as data. A program is instructions on named in-order queues, the buffers they touch
// and the events that order queues among each other. Programs are made by generators (plan/make/ddp.h), proved by
// plan/check/ddp.h and walked by exec/executor.h. One program is one step; it is run again for every step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "grid/grid.h"
#include "plan/ir/shape.h"

namespace tutti {

enum class Op : uint8_t {
  kLoad,      ///< compute: take the micro-batch (lane, micro) from the loader
  kForward,   ///< compute: one segment of one block on (lane, micro)
  kBackward,  ///< compute: the same segment back; writes the block's gradient into buffer `writes[0]`, whole (beta =
              ///< 0), and those of shared parameters into the buffers of their owners' units behind it
  kFold,      ///< compute: the additions `adds` on buffers of one unit, in order
  kAcquire,   ///< comm: waits until no peer reads the bucket's partials of the step before
  kReduce,    ///< comm: my slice of the bucket is reduced over all ranks
  kNorm,      ///< comm: chunk sums of squares of my slice
  kGather,    ///< comm: all slices of the bucket become readable
  kVote,      ///< comm: one small all-reduce over all ranks (norm, loss, counts, stop): the commit of the step
  kUpdate,    ///< compute: the optimizer on one unit; then `bucket`'s readers are released after its last unit
  // Programs of a mesh (plan/make/mesh.h) know no buckets: their Reduce, Norm, Gather and Update name a unit (`block`),
  // and they have these besides:
  kSend,      ///< the buffer `reads[0]` to `peer`, whose Recv has the same id; nothing is buffered
  kRecv,      ///< the buffer `writes[0]` from `peer`
  kExchange,  ///< tensor axis: borders of all columns meet as the segment declares (Exchange in plan/ir/shape.h)
  kFetch,     ///< disk or host-to-device: a unit's offloaded values come in
  kEvict,     ///< ... and go out
};
inline constexpr int kOps = 15;
const char* op_name(Op op);
/// Instructions that stand in the same order, with the same id and bucket, on every rank (of their group, where they
/// have one).
inline bool meets(Op op) {
  return op == Op::kAcquire || op == Op::kReduce || op == Op::kGather || op == Op::kVote || op == Op::kExchange;
}

enum class BufferKind : uint8_t { kParameter, kGradient, kMoment, kSaved, kBorder, kWork, kMessage, kData };
inline constexpr int kBufferKinds = 8;
const char* kind_name(BufferKind kind);

struct Buffer {
  std::string name;
  BufferKind kind = BufferKind::kWork;
  int64_t bytes = 0;
  int unit = -1;     ///< gradients and parameters: the unit they belong to; scratch shared by all units: -1
  int partial = -1;  ///< gradients: the partial of the rank this is (lies in the window); -1: private memory
  int level = -1;    ///< gradients: its place in the rank's fold stack; -1: scratch
  // Programs of a mesh:
  Range range{};              ///< floats of the unit that it holds, where that is not all: slices
  bool window = false;        ///< lies where other ranks may read it; it begins there at window_offset
  int64_t window_offset = 0;  ///< bytes
  bool offloaded = false;     ///< lies in the second tier: Fetch reads it there, Evict writes it
};

/// Of Backward: the whole, or one of its parts.
enum class Part : uint8_t { kBoth, kInput, kWeight };

/// A value of a unit and where this instruction finds it.
struct UnitBuffer {
  int unit = -1, buffer = -1;
  bool operator==(const UnitBuffer&) const = default;
};

/// What Forward and Backward of a mesh's program run on: buffers of one tensor each, in the order in which the segment
/// declares its borders; -1: there is none.
struct Flow {
  std::vector<int> in, out;            ///< of the data, too; an output that is an input's memory has its buffer
  std::vector<int> grad_out, grad_in;  ///< Backward
  int saved = -1, deferred = -1, work = -1;
  std::vector<UnitBuffer> parameters;  ///< the block's own unit, then those it shares parameters of
  std::vector<UnitBuffer> gradients;   ///< where Backward writes: the own unit's, then those of the shared parameters
  bool operator==(const Flow&) const = default;
};

/// One addition of a Fold: buffer `into` += buffer `from`, over the unit's floats.
struct Add {
  int into, from;
  bool operator==(const Add&) const = default;
};

struct Instruction {
  Op op = Op::kLoad;
  uint32_t id =
      0;  ///< unique in the program; the same number on all ranks for instructions that meet (reduce, gather, vote...)
  int block = -1, segment = -1, lane = -1, micro = -1, bucket = -1;
  std::vector<int> waits;  ///< events that must have been signalled in this step
  int signal = -1;         ///< event signalled when done; -1: none
  /// Buffers. Backward's `writes` are gradients only: a buffer with unit = -1 gets the block's own, one with a unit
  /// that unit's. A block without parameters that shares none writes none. Fold has neither: its buffers stand in
  /// `adds`.
  std::vector<int> reads, writes;
  std::vector<int> holds;  ///< buffers of this queue alone: temporaries and border gradients
  std::vector<Add> adds;
  // Programs of a mesh:
  Part part = Part::kBoth;
  bool again = false;  ///< Forward: computed a second time for Backward (recompute)
  int round = -1;      ///< Reduce: which round of the unit's sum (plan/make/mesh.h)
  int group = -1;      ///< who meets: a place in Plan::groups; -1: all ranks
  int peer = -1;       ///< Send, Recv
  int64_t bytes = 0;   ///< Send, Recv: how many travel, from the buffer's start
  /// Exchange: what is done. flow.in: my columns' buffers in order; flow.out: the one whole buffer (gather), or my
  /// columns' parts (scatter).
  Exchange exchange = Exchange::kNone;
  int output = -1;  ///< Exchange: of the segment's outputs
  Flow flow;
};

struct Queue {
  std::string name;  ///< "compute", "data" (the data axis), ...
  std::vector<Instruction> instructions;
};

/// Units reduced together: small ones merged, in the order in which backward completes them. Blocks without parameters
/// are in no bucket.
struct Bucket {
  std::vector<int> units;            ///< descending block order
  std::vector<int64_t> unit_offset;  ///< floats: where each unit's partial begins in the bucket's partial
  int64_t partial_size = 0;          ///< floats
};

struct Program {
  int rank = 0;
  Range lanes;                ///< of the DDP generator; a mesh deals lanes out by Plan::mesh
  std::vector<Queue> queues;  ///< [0] is compute
  std::vector<Buffer> buffers;
  int events = 0;
};

struct Plan {
  int lanes = 1, ranks = 1;
  std::vector<Bucket> buckets;
  std::vector<Program> programs;
  /// Of a mesh: ranks that meet, ascending. Empty for the DDP generator's plans.
  std::vector<std::vector<int>> groups;
};

/// SHA-256 based; equal on all ranks or the run does not start.
uint64_t plan_hash(const Plan& plan);

/// "Forward block 3.1 lane 2 micro 0": what stands in dumps, faults and traces.
std::string to_string(const Instruction& instruction);
/// A line per instruction and buffer, for people.
std::string to_string(const Program& program);

}  // namespace tutti
