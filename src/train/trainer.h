// One rank of a training run: it plans, connects, and then takes steps. The same class runs alone and among many, on
// the host's cores and on a device.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/collectives.h"
#include "config/job.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "engine/device/ddp.h"
#include "engine/device/rank_device.h"
#include "engine/units.h"
#include "engine/update.h"
#include "exec/trace.h"
#include "launch/local.h"
#include "model/runner.h"
#include "model/segment.h"
#include "optim/loss_scale.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "plan/check/ddp.h"
#include "train/mesh_rank.h"
#include "train/metrics.h"

namespace tutti {

struct StepReport {
  int64_t step = 0;  ///< number of steps committed, this one included
  double loss = 0, gradient_norm = 0, lr = 0, seconds = 0;
  bool stop = false;     ///< a rank was asked to stop: all ranks see it at the same step
  bool skipped = false;  ///< float16: its gradients overflowed, nothing but the loss scale changed
};

class Trainer {
 public:
  /// Collective over all ranks of `context`. `model`, `job` and `device` must outlive it. With `checkpoint` the state
  /// comes from there. `own` is for layout.partition = "own".
  Trainer(const Job& job, const Model& model, RankContext& context, const std::string& checkpoint,
          const OwnPartition& own = {}, RankDevice* device = nullptr);
  ~Trainer();

  /// One step over all ranks. Throws CommError when a peer is lost, Error naming step, lane and block when a loss or
  /// gradient is not finite.
  StepReport step();
  /// Over train.eval_batches of the held-out records a lane, or all test records; the same on every rank and layout.
  Metrics evaluate();
  Metrics evaluate_test();
  /// Takes note of an evaluation's watched metric: the schedule follows it from the next step on.
  Judgement watch(double value);
  const Watched& watched() const { return watched_; }
  /// What was trained on in which order since this trainer started, over all ranks. Collective.
  uint64_t order_digest();
  /// Every rank's state hash is compared; throws Error when one differs. Collective.
  std::string agreed_hash();

  int64_t committed() const { return step_; }
  /// Writes a checkpoint of the state as it is now; the path on rank 0. Collective where the state is cut over ranks,
  /// else rank 0's alone.
  std::string save(const std::string& folder, const std::string& job_toml);
  /// Whole, where it is not cut over ranks.
  State state() const;
  bool cut() const { return mesh_ != nullptr; }
  /// The state as it is now, to be read on another thread while steps go on: call it there, it waits for the copy. Null
  /// where state lies in the host's memory or is cut over ranks: then state() or save() must be used before the next
  /// step.
  std::function<State()> state_beside();
  const Units& units() const { return *units_; }  ///< where state is not cut
  std::vector<std::string> slots() const { return updater_->slots(); }
  Placement& placement() { return engine_->placement(); }
  const Split& data() const { return data_; }
  const ModelShape& shape() const { return shape_; }
  const Plan& plan() const { return mesh_ ? mesh_->plan() : plan_; }
  const Program& program() const { return plan().programs[context_.rank]; }
  const Accounts& accounts() const { return accounts_; }
  /// Bytes that this rank was expected to take, of its device if it has one.
  int64_t forecast_bytes() const;
  const DeviceForecast& device_forecast() const { return device_forecast_; }  ///< of nothing on the host's cores
  const DeviceShare& device_share() const { return share_; }                  ///< by all ranks' forecasts
  const Trace& trace() const { return trace_; }
  double traced_seconds() const { return engine_->traced_seconds(); }
  Duration loader_stall() const { return loader_->stalled(); }
  const Partition& partition() const { return partition_; }
  const Transport& transport() const { return *transport_; }
  bool on_device() const { return device_ != nullptr; }
  const RankDevice* device() const { return device_; }  ///< null: the host's cores
  const LossScale& loss_scale() const { return scale_; }

 private:
  DataGroup data_group() const;
  LoaderOptions loader_options() const;
  Plan make_plan() const;
  void measure();
  void set_up_data_parallel(const std::string& checkpoint);
  void set_up_mesh(const std::string& checkpoint);
  void resume_from(const StateCounters& counters);
  void check_device_memory(const DeviceForecast& forecast);
  void load(const std::string& checkpoint);
  void connect();
  StateCounters counters() const;
  Collector& cut_state();
  [[noreturn]] void explain_nonfinite();

  const Job& job_;
  const Model& model_;
  RankContext& context_;
  RankDevice* const device_;  // null: the host's cores
  Batch batch_;
  Range lanes_;
  Accounts accounts_;
  Trace trace_;
  Split data_;
  ModelShape shape_;
  Plan plan_;
  GradientPlaces places_;
  std::unique_ptr<Units> units_;  // null where state is cut over ranks
  std::unique_ptr<Updater> updater_;
  std::unique_ptr<MeshRank> mesh_;  // null: plain data parallelism
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Channel> main_channel_, loader_channel_;
  Order order_;
  Partition partition_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Engine> engine_;

  DeviceForecast device_forecast_;
  DeviceShare share_;
  int64_t step_ = 0;  // steps committed
  Watched watched_;
  LossScale scale_;
};

}  // namespace tutti
