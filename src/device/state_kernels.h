// What happens to a model's state on a device besides forward and backward: sums of gradients,
// norms, the commit of a step and the optimizers' updates. It is a table of functions that put
// their work on a stream. Every pointer is to the device's memory unless it is said to be the
// host's. What a step's work depends on is stored in the device's memory, so that a step can be
// captured once and launched again.
//
//   StepInputs   what the host decides before a step; it is copied to the device ahead of the step
//   StepOutcome  what the step found: written by commit(), read by update(), copied back afterwards
#pragma once

#include <cstdint>
#include <span>

#include "comm/fold.h"
#include "config/enums.h"
#include "exec/device.h"
#include "optim/update_kernels.h"
#include "tensor/kernels.h"

namespace tutti {

/// Who has a kernel of its own.
enum class UpdateKind : int32_t { kSgd, kAdagrad, kRmsprop, kAdam, kAdamw, kLion, kLamb };
template <>
inline constexpr EnumName<UpdateKind> kNamesOf<UpdateKind>[] = {
    {UpdateKind::kSgd, "sgd"},         {UpdateKind::kAdagrad, "adagrad"},
    {UpdateKind::kRmsprop, "rmsprop"}, {UpdateKind::kAdam, "adam"},
    {UpdateKind::kAdamw, "adamw"},     {UpdateKind::kLion, "lion"},
    {UpdateKind::kLamb, "lamb"}};

/// What the elements of a parameter have in common in one step. The host makes it for every
/// step (engine/updater.h).
struct RuleScalars {
  enum Role : int32_t { kTrained, kFrozen, kMeanBuffer, kSumBuffer };
  Role role = kTrained;
  Momentum momentum = Momentum::kNone;  ///< sgd
  PlainScalars plain{};                 ///< its gradient.scale is not read: StepOutcome has it
  /// its gradient.scale is not read either; lamb: step_size is lr, without its trust ratio
  MomentScalars moments{};
  float proposals = 1;  ///< kMeanBuffer: what the sum is divided by
};

struct StepInputs {
  StepKeys keys;
  double loss_scale[2] = {1, 0};  ///< the gradient of (loss sum, count); 1 except in float16
  double clip = 0;                ///< 0: off
  /// 1: this rank was asked to stop; 1: it is writing its share of a checkpoint. Copied into its
  /// votes.
  double stop = 0, saving = 0;
  /// kValue: not at all here; the cut stands in the rules' gradient.limit
  ClipBy clip_by = ClipBy::kNorm;
  int32_t reserved = 0;
};

/// The layout of the array of doubles that the ranks sum for the vote, equal on all ranks: the
/// parameter chunks' sums of squares, unit by unit; then the loss's sum of every (lane,
/// micro-batch); then its count of targets likewise; then how many ranks were asked to stop, and how
/// many are writing a checkpoint. A rank fills in the places that are its own and leaves zero
/// elsewhere. So a place has one term that is not zero, or small whole numbers, and the sum over
/// ranks is exact whatever its order. (On the host the vote is a small all-gather of records
/// instead: engine/vote.h.)
struct VoteLayout {
  int32_t units = 0;
  int32_t micro_batches = 0;             ///< of all lanes
  const int64_t* unit_chunks = nullptr;  ///< [units + 1]: where each unit's chunks begin
  int64_t chunks = 0;
  int64_t losses() const { return chunks; }
  int64_t counts() const { return chunks + micro_batches; }
  int64_t stop() const { return chunks + 2 * int64_t{micro_batches}; }
  int64_t saving() const { return stop() + 1; }
  int64_t size() const { return saving() + 1; }
};

struct StepOutcome {
  double loss = 0, targets = 0;  ///< sums over all micro-batches, in their order
  /// of the gradient as it was summed: with the loss scale in it, and not divided
  double squares = 0;
  double stop = 0;     ///< > 0: a rank was asked to stop
  double saving = 0;   ///< > 0: a rank was writing its share of a checkpoint
  int32_t finite = 0;  ///< 0: nothing of this step was written
  int32_t reserved = 0;
  // It is followed by float gradient_scale[units], which every gradient of a unit is multiplied by.
};

/// A parameter chunk: norms are summed and updates run chunk by chunk.
struct StateChunk {
  /// floats from the start of the unit (update) or of the given array (squares)
  int64_t at = 0;
  int32_t size = 0;       ///< 1 to kChunk
  int32_t rule = 0;       ///< update: index into the rules
  int32_t parameter = 0;  ///< update: its number in the unit, for lamb's ratios
  int32_t place = 0;      ///< squares: its place in the votes
};

struct UpdateArguments {
  UpdateKind kind = UpdateKind::kAdamw;
  bool nesterov = false;
  int32_t unit = 0;
  float* parameters = nullptr;       ///< the unit's
  const float* gradients = nullptr;  ///< the unit's, reduced
  float* slots[2] = {};              ///< the unit's; null where the optimizer has none
  /// the unit's low copy, in the matmuls' precision, which is written along; null in float32
  void* low = nullptr;
  Precision precision = Precision::kFloat32;
  const StateChunk* chunks = nullptr;
  int64_t chunk_count = 0;
  const RuleScalars* rules = nullptr;
  const StepOutcome* outcome = nullptr;
  // lamb:
  double* chunk_norms = nullptr;  ///< scratch: [chunk_count][2]
  float* trust = nullptr;         ///< scratch: [parameters]
  /// [parameter_count + 1]: where each parameter's chunks begin
  const int64_t* parameter_chunks = nullptr;
  int32_t parameter_count = 0;
};

struct StateKernels {
  /// The same as fold of comm/fold.h, bits included. terms and order are the host's, and are read
  /// before it returns.
  void (*fold)(Stream stream, float* out, std::span<const float* const> terms,
               std::span<const FoldStep> order, int64_t n);
  void (*add_into)(Stream stream, float* a, const float* b, int64_t n);
  /// votes[chunk.place] = the sum of squares of the chunk in double, in one fixed order.
  void (*chunk_squares)(Stream stream, const float* x, const StateChunk* chunks, int64_t count,
                        double* votes);
  /// The commit: adds up the votes, which the ranks have summed, in their order, and decides
  /// the clip factors. outcome->finite is 0 where a sum is not finite. `layout.unit_chunks` is
  /// the device's.
  ///   divisor = targets (1 if none); norm = sqrt(squares) / divisor / loss_scale
  ///   gradient_scale = clip factor / divisor / loss_scale, in double, rounded once;
  ///   with kUnit the clip factor is that of the unit's own squares
  void (*commit)(Stream stream, const double* votes, const VoteLayout& layout,
                 const StepInputs* inputs, StepOutcome* outcome);
  /// Updates the unit's parameters, slots and low copy; does nothing where outcome->finite is 0.
  /// Element by element these are the operations of optim/update_kernels.h.
  void (*update)(Stream stream, const UpdateArguments& arguments);
  /// to[i] = from[i] in `precision`.
  void (*cast)(Stream stream, const float* from, void* to, int64_t n, Precision precision);
};

/// Bytes of an outcome for so many units.
inline int64_t outcome_bytes(int units) {
  return static_cast<int64_t>(sizeof(StepOutcome)) +
         int64_t{units} * static_cast<int64_t>(sizeof(float));
}

}  // namespace tutti
