// What a step on a device begins with and how it ends, whatever its plan:
//
//   inputs    StepInputs and the rules of all parameters: written by the host into pinned memory,
//             copied before a step
//   votes     VoteLayout's doubles: squares of chunks, losses, counts; summed over ranks, judged by
//             the commit
//   outcome   what the commit found; updates read it there, the host gets a copy behind the step
#pragma once

#include <vector>

#include "device/group.h"
#include "device/state_kernels.h"
#include "engine/device/device_arrays.h"
#include "engine/device/device_tables.h"
#include "engine/device/rank_device.h"
#include "engine/parts.h"
#include "engine/verdict.h"

namespace tutti {

/// Chunks in the device's memory.
struct ChunkList {
  const StateChunk* chunks = nullptr;
  int64_t count = 0;
};

class DeviceCommit {
 public:
  /// Both must outlive it.
  DeviceCommit(const EngineParts& parts, const RankDevice& rank);
  ~DeviceCommit();
  DeviceCommit(const DeviceCommit&) = delete;
  DeviceCommit& operator=(const DeviceCommit&) = delete;

  const StateTables& tables() const { return tables_; }
  ChunkList on_device(const std::vector<StateChunk>& chunks);
  /// The update of what a rank holds of a unit, all but the places of its values: pointers are of
  /// the unit's first float, held or not. LAMB's norms want the whole unit.
  UpdateArguments update_of(int unit, Range held);
  /// In the device's memory.
  const StepInputs* inputs() const { return inputs_; }

  /// Copies the step's inputs to the device, ahead of it.
  void begin(const StepRequest& request);
  // What a step puts on its streams, the same every time:
  void clear(Stream stream);  ///< the votes; before all others
  /// Instead of clear(): votes by which nothing of the step will be written. Waits for the stream.
  void spoil(Stream stream);
  /// `loss`: the sum and its count.
  void count_loss(Stream stream, int lane, int micro, const double* loss);
  void count_squares(Stream stream, const float* values, const ChunkList& chunks);
  /// The vote, over all ranks of the group (null: one alone), and what follows from it.
  void decide(Stream stream, DeviceGroup* group);
  /// Copies the outcome to the host, behind the step.
  void end();
  /// Of the step whose end() has run.
  StepVerdict verdict(const StepRequest& request) const;

 private:
  const EngineParts& p_;
  const RankDevice& rank_;
  Device& device_;
  const Batch batch_;
  const StateTables tables_;
  DeviceArrays arrays_;
  VoteLayout layout_;
  double* votes_ = nullptr;
  std::span<std::byte> pinned_inputs_, pinned_outcome_;
  StepInputs* inputs_ = nullptr;  // on the device; the rules behind it
  StepOutcome* outcome_ = nullptr;
  size_t rule_count_ = 0;
};

}  // namespace tutti
