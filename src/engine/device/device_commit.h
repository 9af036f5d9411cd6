// What a step on a device begins with and how it ends, whatever its plan:
//
//   inputs    StepInputs and the rules of all parameters: written by the host into pinned memory,
//             and copied to the device before a step
//   votes     the doubles of VoteLayout: squares of chunks, losses, counts. They are summed over
//             ranks (an all-reduce) and judged by the commit
//   outcome   what the commit found: updates read it on the device, and the host gets a copy after
//             the step
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

/// A list of parameter chunks in the memory of the device.
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
  /// The update of what a rank holds of a unit, without the addresses of its values: those that the
  /// caller adds are of the first float of the unit, held or not. LAMB's norms need the whole unit.
  UpdateArguments update_of(int unit, Range held);
  /// What updates read of the step. It is in the memory of the device.
  const StepInputs* inputs() const { return inputs_; }

  /// Copies the inputs of the step to the device, ahead of the step.
  void begin(const StepRequest& request);
  // What a step puts on its streams, the same every time:
  /// Zeroes the votes; it comes before everything else.
  void clear(Stream stream);
  /// Instead of clear(): fills in votes that let nothing of the step be written.
  /// Waits for the stream.
  void spoil(Stream stream);
  /// `loss` points to the sum of the losses and their count.
  void count_loss(Stream stream, int lane, int micro, const double* loss);
  /// The sums of squares of these chunks of `values`.
  void count_squares(Stream stream, const float* values, const ChunkList& chunks);
  /// The vote over all ranks of the group (null: one rank alone), and what follows from it.
  void decide(Stream stream, DeviceGroup* group);
  /// Copies the outcome to the host, after the step.
  void end();
  /// The verdict on the step whose end() has run.
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
  StepInputs* inputs_ = nullptr;  // on the device, followed by the rules
  StepOutcome* outcome_ = nullptr;
  size_t rule_count_ = 0;
};

}  // namespace tutti
