// One rank of a training run: it plans, connects, and then takes steps. The same class runs alone
// and among many, on the host's cores and on a device.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/collectives.h"
#include "config/job.h"
#include "data/core/dataset.h"
#include "data/load/loader.h"
#include "engine/device/forecast.h"
#include "engine/device/rank_device.h"
#include "engine/engine.h"
#include "engine/units.h"
#include "engine/updater.h"
#include "eval/metrics.h"
#include "exec/trace.h"
#include "launch/local.h"
#include "model/core/segment.h"
#include "optim/optimizer.h"
#include "state/collect.h"
#include "train/progress.h"
#include "train/rank_plan.h"

namespace tutti {

struct StepReport {
  int64_t step = 0;  ///< number of steps committed, this one included
  double loss = 0, gradient_norm = 0, lr = 0, seconds = 0;
  bool stop = false;     ///< a rank was asked to stop: all ranks see it at the same step
  bool skipped = false;  ///< float16: its gradients overflowed, nothing but the loss scale changed
};

class Trainer {
 public:
  /// Collective over all ranks of `context`. `model`, `job` and `device` must outlive it. With
  /// `checkpoint` the state comes from there. `own` is for layout.partition = "own".
  Trainer(const Job& job, const Model& model, RankContext& context, const std::string& checkpoint,
          const OwnPartition& own = {}, RankDevice* device = nullptr);
  ~Trainer();

  /// One step over all ranks. Throws CommError when a peer is lost, Error naming step, lane and
  /// block when a loss or gradient is not finite.
  StepReport step();
  /// Over train.eval_batches of the held-out records a lane, or all test records; the same on every
  /// rank and layout.
  Metrics evaluate();
  Metrics evaluate_test();
  /// Takes note of an evaluation's watched metric: the schedule follows it from the next step on.
  Judgement watch(double value);
  /// What was trained on in which order since this trainer started, over all ranks. Collective.
  uint64_t order_digest();
  /// Every rank's state hash is compared; throws Error when one differs. Collective.
  std::string agreed_hash();

  int64_t committed() const { return progress_.step; }
  const Progress& progress() const { return progress_; }
  /// Writes a checkpoint of the state as it is now; the path on rank 0. Collective.
  std::string save(const std::string& folder, const std::string& job_toml);
  /// This rank's part of the state as it is now, to be read on another thread while steps go on:
  /// call it there, it waits for the copy. Null where state is in the host's memory, or rank 0 does
  /// not hold all of it: then save() must be used before the next step.
  std::function<State()> state_beside();
  /// Whether this rank holds all parameters.
  bool whole() const;
  const Units& units() const { return *units_; }
  std::vector<std::string> slots() const { return updater_->slots(); }
  Placement& placement() { return *engine_; }
  RunnerOptions runner_options() const { return engine_->options(); }
  const Split& data() const { return data_; }
  const ModelShape& shape() const { return shape_; }
  const Plan& plan() const { return plan_.steps; }
  const Program& program() const { return plan().programs[context_.rank]; }
  const Accounts& accounts() const { return accounts_; }
  /// Bytes that this rank was expected to take, of its device if it has one.
  int64_t forecast_bytes() const;
  /// of nothing on the host's cores
  const DeviceForecast& device_forecast() const { return device_forecast_; }
  /// by all ranks' forecasts
  const DeviceShare& device_share() const { return share_; }
  const Trace& trace() const { return trace_; }
  double traced_seconds() const { return engine_->traced_seconds(); }
  Duration loader_stall() const { return loader_->stalled(); }
  const Partition& partition() const { return partition_; }
  const Transport& transport() const { return *transport_; }
  bool on_device() const { return device_ != nullptr; }
  const RankDevice* device() const { return device_; }  ///< null: the host's cores

 private:
  DataGroup data_group() const;
  LoaderOptions loader_options() const;
  void measure();
  void place(const std::string& checkpoint);
  void check_device_memory();
  void connect();
  /// As it is now, wherever it is.
  Collector& state();
  [[noreturn]] void explain_nonfinite(const StepRequest& request);

  const Job& job_;
  const Model& model_;
  RankContext& context_;
  RankDevice* const device_;  // null: the host's cores
  Batch batch_;
  Accounts accounts_;
  Trace trace_;
  Split data_;
  ModelShape shape_;
  std::unique_ptr<Updater> updater_;
  RankPlan plan_;
  std::unique_ptr<ProgramMemory> memory_;
  std::unique_ptr<Units> units_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Channel> main_channel_, loader_channel_;
  std::unique_ptr<Collector> collector_;
  Order order_;
  Partition partition_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Engine> engine_;

  DeviceForecast device_forecast_;
  DeviceShare share_;
  Progress progress_;
};

}  // namespace tutti
