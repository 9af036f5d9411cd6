// The plan: one program per rank, as data. A program is instructions on in-order queues, the
// buffers that they touch, and the events that order queues among each other. Programs are made by
// plan/make/plan_mesh.h, proved by plan/check/prove.h and run by exec/executor.h. One program is
// one step; it is run again for every step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "grid/grid.h"
#include "plan/ir/shape.h"
#include "plan/ir/transfers.h"

namespace tutti {

enum class Op : uint8_t {
  kLoad,     ///< compute: take the micro-batch (lane, micro) from the loader
  kForward,  ///< compute: one segment of one block on (lane, micro)
  /// compute: the same segment back. It writes gradients whole (beta = 0, it never adds to what is
  /// there), those of shared parameters for their owners.
  kBackward,
  kFold,     ///< compute: the additions `adds` on one unit's buffers, in order (accumulation)
  kAcquire,  ///< data: waits until no rank reads what it borrowed of the parcel in the step before
  kReduce,   ///< data: the members make their slices of a parcel's sum (a reduce-scatter)
  kNorm,     ///< data: sums of squares of my slices of a parcel, per parameter chunk
  kGather,   ///< data: ranges are copied to those who hold them whole (an all-gather)
  /// data: all ranks tell each other norm, loss, counts and requests to stop: the commit of
  /// the step. On the host this is a small all-gather of records, on devices a sum
  /// (all-reduce) of an array.
  kVote,
  kUpdate,  ///< compute: the optimizer on one unit
  kSend,    ///< a message to `peer`, whose Recv has the same id; nothing is buffered
  kRecv,    ///< ... from `peer`
  /// Tensor axis: borders of all columns meet as the segment declares (Exchange in
  /// plan/ir/shape.h).
  kExchange,
  kFetch,  ///< a unit's offloaded values come in, from a file or from the host to the device
  kEvict,  ///< ... and go back
  /// This rank has read what it borrowed of a parcel; whoever lent it may write there again.
  kRelease,
};
inline constexpr int kOps = 16;
const char* op_name(Op op);
/// Whether instructions of an op are in the same order, with the same id and parcel, on every rank
/// (of their group, if they have one).
inline bool meets(Op op) {
  return op == Op::kAcquire || op == Op::kReduce || op == Op::kGather || op == Op::kVote ||
         op == Op::kExchange;
}

enum class BufferKind : uint8_t {
  kParameter,
  kGradient,
  kMoment,   ///< an optimizer's slots
  kSaved,    ///< kept from forward to backward
  kBorder,   ///< activations between segments, and their gradients
  kWork,     ///< temporaries, and the step's few numbers
  kMessage,  ///< room for what arrives in an Exchange
  kData,     ///< micro-batches
  kCopy      ///< of the state, while it is written; no buffer of a program
};
inline constexpr int kBufferKinds = 9;
const char* kind_name(BufferKind kind);

/// Floats of a unit, and where they are in another order of its floats.
struct PlacedRange {
  Range range;
  int64_t at = 0;
  bool operator==(const PlacedRange&) const = default;
};

struct Buffer {
  std::string name;
  BufferKind kind = BufferKind::kWork;
  int64_t bytes = 0;
  /// Gradients, parameters and moments: the unit they belong to; memory that units share: -1.
  int unit = -1;
  int level = -1;  ///< gradients: its place in the rank's fold stack; -1: scratch
  Range range{};   ///< floats of the unit that it holds, if not all of them: slices
  /// Other ranks may read it; it begins at window_offset of the rank's window.
  bool window = false;
  int64_t window_offset = 0;  ///< bytes
  bool offloaded = false;     ///< is in the second tier: Fetch reads it there, Evict writes it
  bool lent = false;          ///< data: the loader's memory, not the rank's
  /// In a program of evaluation: the buffer of the steps' program whose memory this is; -1: none.
  int same_as = -1;
  /// Work: temporaries of segments. What ATen allocates for these itself needs no memory here.
  bool temporaries = false;
  /// Copies of shared parameters: which floats of the unit the buffer has, and where in the unit's
  /// gradient space (`range`) they are. Empty: every float is at its own place.
  std::vector<PlacedRange> placed = {};
  bool operator==(const Buffer&) const = default;
};
/// Which floats of its unit, which has `unit_size`, a buffer of parameters holds, and where.
std::vector<PlacedRange> placed_in(const Buffer& buffer, int64_t unit_size);

/// What a buffer is to an instruction.
enum class OperandRole : uint8_t {
  kData,       ///< Load: a tensor of the micro-batch
  kLoss,       ///< the losses of the step: the model's last Forward adds to them, Vote reads them
  kSquares,    ///< the squares of the step: Norm adds to them, Vote reads them
  kVerdict,    ///< what Vote has found: Update reads it
  kTerm,       ///< Reduce: what this rank adds to a unit's sum
  kSum,        ///< Reduce: a level of an owner's stack of sums; Norm: the finished sum
  kPart,       ///< Gather: what this rank has of the values
  kWhole,      ///< Gather: where all of them come together
  kGradient,   ///< Update: the unit's sum, or a range of it; that of another rank is borrowed
  kParameter,  ///< Update
  kMoment,     ///< Update
  kMessage,    ///< Send, Recv
  kStored,     ///< Fetch, Evict: where values are in the second tier
  kResident,   ///< ... and where in memory, one for each that is stored
  /// Acquire: what others borrowed in the step before.
  kLent,
};
inline constexpr int kRoles = 15;
const char* role_name(OperandRole role);

enum class Access : uint8_t { kRead, kWrite, kUpdate };  ///< kUpdate: both

/// A buffer as one instruction uses it.
struct Operand {
  OperandRole role = OperandRole::kData;
  Access access = Access::kRead;
  int buffer = -1;  ///< of this rank's program, or of that of `rank`
  int unit = -1;    ///< whose values they are, if they are a unit's
  Range range{};    ///< floats of the unit; empty: all that the buffer holds
  int rank = -1;    ///< whose memory it is, if another rank's; -1: this one's
  bool operator==(const Operand&) const = default;
};

/// The whole of a Backward, or one of its two parts: gradients of inputs (B), of parameters (W).
enum class Part : uint8_t { kBoth, kInput, kWeight };

/// Values of a unit, and the buffer in which an instruction finds them.
struct UnitBuffer {
  int unit = -1, buffer = -1;
  bool operator==(const UnitBuffer&) const = default;
};

/// What Forward and Backward run on: buffers of one tensor each, in the order in which the segment
/// declares its borders; -1: there is none.
struct Flow {
  /// Data is among the inputs. An output that is an input's memory has that input's buffer.
  std::vector<int> in, out;
  /// Backward. A gradient that takes the memory of its own input (which the segment consumes)
  /// has that input's buffer. The segment's Forward then names it, too: from there on the buffer
  /// is the gradient's.
  std::vector<int> grad_out, grad_in;

  /// `deferred` is what the input part of a split backward writes and the weight part reads; a
  /// whole backward has none.
  int saved = -1, deferred = -1, work = -1;
  std::vector<UnitBuffer> parameters;  ///< the block's own unit, then those it shares parameters of
  /// Where Backward writes: the own unit's gradient, then those of shared parameters.
  std::vector<UnitBuffer> gradients;
  bool operator==(const Flow&) const = default;
};

/// One addition of a Fold: buffer `into` += buffer `from`, over the unit's floats.
struct Add {
  int into, from;
  bool operator==(const Add&) const = default;
};

struct Instruction {
  Op op = Op::kLoad;
  /// Unique in the program; the same number on all ranks for instructions that meet, and for a Send
  /// and its Recv.
  uint32_t id = 0;
  int block = -1, segment = -1, lane = -1, micro = -1;
  std::vector<int> waits;         ///< events that must have been signalled in this step
  int signal = -1;                ///< event signalled when done; -1: none
  std::vector<Add> adds;          ///< of a Fold
  std::vector<Operand> operands;  ///< all but what is in `flow` and `adds`
  /// Reduce, Norm, Gather, Acquire, Release: an index of Plan::parcels.
  int parcel = -1;
  int transfer = -1;  ///< Reduce: an index of Plan::sums; Gather: of Plan::copies
  Part part = Part::kBoth;
  /// Forward: computed a second time for Backward (recompute, activation checkpointing).
  bool again = false;
  int round = -1;     ///< Reduce: which round of the unit's sum (grid/mesh.h)
  int group = -1;     ///< who meets: an index of Plan::groups; -1: all ranks
  int peer = -1;      ///< Send, Recv
  int64_t bytes = 0;  ///< Send, Recv: how many travel, from the buffer's start
  /// Exchange: what is done. flow.in has my columns' buffers in order; flow.out the one whole
  /// buffer (gather) or my columns' parts (scatter).
  Exchange exchange = Exchange::kNone;
  int output = -1;  ///< Exchange: which of the segment's outputs
  Flow flow;
  bool operator==(const Instruction&) const = default;
};

/// The operands of one role (and of one unit, if one is named), in their order.
std::vector<const Operand*> operands_of(const Instruction& instruction, OperandRole role,
                                        int unit = -1);
/// The buffer of the first operand of that role; -1: there is none.
int buffer_of(const Instruction& instruction, OperandRole role);

/// What a queue is for. A rank has the queues that it needs; instructions for another one
/// are on compute.
enum class QueueUse : uint8_t {
  kCompute,
  kData,    ///< sums and gathers of the data axis, the vote
  kShared,  ///< sums over stages: those who share a parameter come to them at other times
  kTier,    ///< offloaded values
  kActivationsIn,
  kActivationsOut,
  kGradientsIn,
  kGradientsOut,
  // If a stage has two neighbours on one side of a chunk (zbv goes down and up again), messages of
  // the second have queues of their own: in one queue they could wait for each other in a circle.
  kActivationsInBack,
  kActivationsOutBack,
  kGradientsInBack,
  kGradientsOutBack,
};
inline constexpr int kQueueUses = 12;
const char* queue_name(QueueUse use);
/// The way that messages of a queue go, the same for those who send and those who receive. Queues
/// without messages are their own way.
QueueUse way_of(QueueUse use);

struct Queue {
  std::string name;  ///< queue_name(), for people
  std::vector<Instruction> instructions;
  QueueUse use = QueueUse::kCompute;
  bool operator==(const Queue&) const = default;
};

struct Program {
  int rank = 0;
  std::vector<Queue> queues;  ///< [0] is compute
  std::vector<Buffer> buffers;
  int events = 0;
  bool operator==(const Program&) const = default;
};

/// A range of a unit, and the ranks that have it, ascending.
struct Owned {
  Range range;
  std::vector<int> ranks;
  bool operator==(const Owned&) const = default;
};
/// Who has what of a unit: ranges that cover it, each with its ranks; some may be empty. They are
/// in the order of the shards, which need not be that of the floats.
struct Ownership {
  std::vector<Owned> sums;        ///< who makes its sum, and counts its squares
  std::vector<Owned> parameters;  ///< whose values are its own, not copies
  std::vector<Owned> moments;     ///< who updates it
  bool operator==(const Ownership&) const = default;
};
/// What a rank has of a unit; empty: nothing.
Range range_of(const std::vector<Owned>& owners, int rank);

/// The place of a rank, and what passes through it.
struct RankPlace {
  Coordinates at;
  Range columns;           ///< of a model in columns
  std::vector<int> lanes;  ///< whose micro-batches pass through it
  bool operator==(const RankPlace&) const = default;
};

/// The programs, and what they mean: nobody who reads a plan has to know how it was made.
struct Plan {
  int ranks = 1;
  std::vector<Program> programs;
  std::vector<std::vector<int>> groups;  ///< ranks that meet, ascending
  Mesh mesh;
  Batch batch;
  bool micro_order = false;  ///< the job's sum: lanes are added after each micro-batch, not once
  bool training = true;      ///< false: only forward, of one micro-batch, for evaluation
  int optimizer_slots = 0;
  std::vector<RankPlace> places;     ///< by rank
  std::vector<Coordinates> homes;    ///< by block: where it runs, on every data rank
  std::vector<Ownership> ownership;  ///< by unit
  std::vector<Parcel> parcels;
  std::vector<SumTransfer> sums;
  std::vector<CopyTransfer> copies;
};

/// The ranks that an instruction meets, itself among them.
std::vector<int> members_of(const Plan& plan, const Instruction& instruction);
/// Whether a list has a number: of a buffer, a lane, a unit, a rank.
bool contains(const std::vector<int>& list, int value);
/// Whether a rank is at the home of a unit (or block).
bool is_home(const Plan& plan, int rank, int block);

/// A hash of every field, from SHA-256. It must be equal on all ranks, or the run does not start.
uint64_t plan_hash(const Plan& plan);

/// "Forward block 3.1 lane 2 micro 0": the name in dumps, faults and traces.
std::string to_string(const Instruction& instruction);
/// A line per instruction and buffer, for people.
std::string to_string(const Program& program);

}  // namespace tutti
