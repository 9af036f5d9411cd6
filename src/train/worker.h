// What one rank has for as long as its process lives: job, model, data, device, and the state that
// it trains. Runs of epochs (train/epoch_run.h) come and go over it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/job.h"
#include "data/core/dataset.h"
#include "data/load/partition.h"
#include "engine/device/rank_device.h"
#include "engine/held_state.h"
#include "engine/parts.h"
#include "engine/updater.h"
#include "grid/order.h"
#include "launch/rank.h"
#include "model/core/segment.h"
#include "train/progress.h"

namespace tutti {

struct Worker {
  /// Collective over all workers. `job`, `model` and `device` must outlive it; a null device is the
  /// host's cores.
  Worker(const Job& job, const Model& model, RankContext& context, OwnPartition own,
         RankDevice* device);

  bool on_device() const { return device != nullptr; }
  int optimizer_slots() const { return static_cast<int>(updater.slots().size()); }
  /// What a dry run measures of the model, once.
  void measure();

  const Job& job;  ///< as the run began: epochs have layouts of their own
  const Model& model;
  RankContext& context;
  RankDevice* const device;
  const OwnPartition own_partition;  ///< for layout.partition = "own"
  const Batch batch;
  Accounts accounts;
  const Split data;
  ModelShape shape;
  const Updater updater;
  const Order order;

  HeldState state;  ///< nothing in a spare
  Progress progress;
  uint64_t order_digest = 0;  ///< of what this worker trained on in epochs that have ended
  Saving saving;

 private:
  bool measured_ = false;
};

/// Whether MKL or torch computes on the CPU: then the bits follow the kind of processor, since
/// libraries have other kernels for each.
bool by_libraries(const Job& job, const Model& model);

}  // namespace tutti
