// Votes instead of an exact sum: every chunk and every micro-batch has a double of its own, filled
// in by one rank and zero on all others. A sum over ranks is then exact in any order, and one
// kernel adds the places in theirs. Everything stays at one address, so a captured step finds it.
#include "engine/device/device_commit.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "engine/device/kind.h"

namespace tutti {

DeviceCommit::DeviceCommit(const EngineParts& parts, const RankDevice& rank)
    : p_(parts),
      rank_(rank),
      device_(*rank.device),
      batch_(batch_of(parts.training.job.train)),
      tables_(state_tables(parts.training.shape, parts.training.updater)),
      arrays_(device_, rank.compute, parts.gauges.accounts) {
  // Inputs and rules are one piece of memory, so that one copy brings both.
  const int units = static_cast<int>(p_.training.shape.blocks.size());
  rule_count_ = p_.training.updater.rule_count();
  const size_t input_bytes = sizeof(StepInputs) + rule_count_ * sizeof(RuleScalars);
  inputs_ = reinterpret_cast<StepInputs*>(
      arrays_.take<std::byte>(BufferKind::kWork, static_cast<int64_t>(input_bytes)));
  outcome_ = reinterpret_cast<StepOutcome*>(
      arrays_.take<std::byte>(BufferKind::kWork, outcome_bytes(units)));

  // Where each vote is: all ranks have the same layout, whatever they hold.
  layout_.units = units;
  layout_.micro_batches = batch_.lanes * batch_.micro_batches;
  layout_.chunks = tables_.places();
  layout_.unit_chunks = arrays_.copied(tables_.unit_chunks);
  votes_ = arrays_.take<double>(BufferKind::kWork, layout_.size());

  // The host's ends of the two copies per step.
  pinned_inputs_ = device_.take_pinned(input_bytes);
  pinned_outcome_ = device_.take_pinned(static_cast<size_t>(outcome_bytes(units)));
}

DeviceCommit::~DeviceCommit() {
  if (!pinned_inputs_.empty()) device_.give_back_pinned(pinned_inputs_);
  if (!pinned_outcome_.empty()) device_.give_back_pinned(pinned_outcome_);
}

ChunkList DeviceCommit::on_device(const std::vector<StateChunk>& chunks) {
  return {arrays_.copied(chunks), static_cast<int64_t>(chunks.size())};
}

UpdateArguments DeviceCommit::update_of(int unit, Range held) {
  const UnitTable& table = tables_.units[unit];
  std::vector<StateChunk> chunks;
  for (const StateChunk& chunk : table.chunks)
    if (held.contains(chunk.at)) chunks.push_back(chunk);

  // A rank that holds nothing of the unit has nothing to update.
  UpdateArguments update;
  if (chunks.empty()) return update;

  // The same for every step: what changes is read through `rules` and `outcome`.
  update.kind = p_.training.updater.kind();
  update.nesterov = p_.training.job.train.nesterov;
  update.unit = unit;
  update.precision = p_.training.job.numerics.precision;
  update.chunks = arrays_.copied(chunks);
  update.chunk_count = static_cast<int64_t>(chunks.size());
  update.parameter_count = static_cast<int32_t>(table.parameter_chunks.size()) - 1;
  update.rules = reinterpret_cast<const RuleScalars*>(inputs_ + 1);
  update.outcome = outcome_;

  // LAMB compares norms over whole parameters: first of their chunks, then of the parameters.
  if (update.kind != UpdateKind::kLamb) return update;
  TUTTI_CHECK(chunks.size() == table.chunks.size(), "LAMB on a slice of unit {}", unit);
  update.chunk_norms = arrays_.take<double>(BufferKind::kWork, 2 * update.chunk_count);
  update.trust = arrays_.take<float>(BufferKind::kWork, update.parameter_count);
  update.parameter_chunks = arrays_.copied(table.parameter_chunks);
  return update;
}

void DeviceCommit::begin(const StepRequest& request) {
  // What the host decides before a step.
  const TrainConfig& train = p_.training.job.train;
  StepInputs inputs;
  inputs.keys = {static_cast<uint64_t>(request.step), first_sample(batch_, request.step, 0, 0)};
  inputs.loss_scale[0] = request.loss_scale;
  inputs.clip = train.clip;
  inputs.clip_by = train.clip_by;
  inputs.stop = p_.context.control.stop.load() != 0 ? 1 : 0;
  inputs.saving = p_.saving.writing ? 1 : 0;

  // The rules of all parameters for this step. A clip by value is part of them.
  StepScalars scalars;
  scalars.step = request.updates;
  scalars.lr = request.lr;
  if (train.clip_by == ClipBy::kValue) scalars.clip_value = train.clip;
  const auto rules =
      p_.training.updater.rules(scalars, int64_t{batch_.lanes} * batch_.micro_batches);
  TUTTI_CHECK(rules.size() == rule_count_, "{} rules of {}", rules.size(), rule_count_);

  // The host may write here: the copy of the step before has run, since that step was waited for.
  std::memcpy(pinned_inputs_.data(), &inputs, sizeof inputs);
  std::memcpy(pinned_inputs_.data() + sizeof inputs, rules.data(),
              rules.size() * sizeof(RuleScalars));
  device_.copy(rank_.compute, inputs_, pinned_inputs_.data(), pinned_inputs_.size());
}

void DeviceCommit::clear(Stream stream) {
  device_.zero(stream, votes_, static_cast<size_t>(layout_.size()) * sizeof(double));
}

void DeviceCommit::spoil(Stream stream) {
  // A NaN in any vote makes the outcome not finite, and updates then write nothing. The memory is
  // the host's own, hence the wait.
  const std::vector<double> votes(static_cast<size_t>(layout_.size()),
                                  std::numeric_limits<double>::quiet_NaN());
  device_.copy(stream, votes_, votes.data(), votes.size() * sizeof(double));
  device_.synchronise(stream);
}

void DeviceCommit::count_loss(Stream stream, int lane, int micro, const double* loss) {
  // The place of a micro-batch does not depend on the rank that ran it.
  const int64_t number = int64_t{lane} * batch_.micro_batches + micro;
  device_.copy(stream, votes_ + layout_.losses() + number, loss, sizeof(double));
  device_.copy(stream, votes_ + layout_.counts() + number, loss + 1, sizeof(double));
}

void DeviceCommit::count_squares(Stream stream, const float* values, const ChunkList& chunks) {
  if (chunks.count > 0)
    rank_.library->state.chunk_squares(stream, values, chunks.chunks, chunks.count, votes_);
}

void DeviceCommit::decide(Stream stream, DeviceGroup* group) {
  // The request to stop is part of the vote, so that all ranks stop after the same step; and so is
  // whether a checkpoint is still being written. They lie together in both.
  device_.copy(stream, votes_ + layout_.stop(), &inputs_->stop, 2 * sizeof(double));
  if (group != nullptr) group->sum(stream, votes_, layout_.size());
  rank_.library->state.commit(stream, votes_, layout_, inputs_, outcome_);
}

void DeviceCommit::end() {
  device_.copy(rank_.compute, pinned_outcome_.data(), outcome_, pinned_outcome_.size());
}

StepVerdict DeviceCommit::verdict(const StepRequest& request) const {
  StepOutcome outcome;
  std::memcpy(&outcome, pinned_outcome_.data(), sizeof outcome);

  // The gradient was summed with the loss scale in it, and before it was divided.
  const double divisor = outcome.targets > 0 ? outcome.targets : 1;
  StepVerdict verdict;
  verdict.loss = outcome.loss / divisor;
  verdict.gradient_norm = std::sqrt(outcome.squares) / divisor / request.loss_scale;
  verdict.finite = outcome.finite != 0;
  verdict.stop = outcome.stop > 0;
  verdict.saving = outcome.saving > 0;
  return verdict;
}

}  // namespace tutti
