// What one rank makes for an epoch and gives up with it: the plan for the epoch's layout, the
// connections with the other members, the plan's memory, the engine. It can be made again in the
// same process for another membership, after a failure or between two steps; what must outlive it
// is the worker's (train/worker.h).
#pragma once

#include <memory>
#include <vector>

#include "comm/collectives.h"
#include "data/load/loader.h"
#include "engine/device/forecast.h"
#include "engine/engine.h"
#include "exec/trace.h"
#include "state/collect.h"
#include "train/rank_plan.h"
#include "train/worker.h"

namespace tutti {

/// What a test puts around an epoch's transport.
using WrapTransport = std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)>;

class EpochRun {
 public:
  /// Plans where no plan is given, compares plans, connects, takes memory. Collective over the
  /// members. Throws ConfigError where the model does not run on the layout.
  EpochRun(Worker& worker, const LayoutConfig& layout, const Membership& membership,
           const WrapTransport& wrap, std::shared_ptr<const Plans> plan = nullptr);
  ~EpochRun();

  /// The epoch's own memory for the worker's state. The parameters have their first values, by the
  /// job's seed, if `fresh`; else they are about to be moved or loaded here.
  HeldState make_state(bool fresh);
  /// The loader and the engine, on the state that the worker has now. Collective.
  void begin();

  /// Lets the others know that this rank takes no further part, so that nobody waits for it.
  void leave() { transport_->leave(); }

  const Membership& membership() const { return membership_; }
  RankContext& context() { return context_; }
  const Job& job() const { return job_; }
  const Plan& plan() const { return plan_->steps; }
  const Program& program() const { return plan().programs[membership_.rank]; }
  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  Loader& loader() { return *loader_; }
  Collector& collector() { return *collector_; }
  Channel& channel() { return *main_channel_; }
  /// Of those who write a checkpoint, beside the steps.
  Channel& saver_channel() { return *saver_channel_; }
  const Transport& transport() const { return *transport_; }
  const Trace& trace() const { return trace_; }
  const Partition& partition() const { return partition_; }
  /// What this rank trains on from here on.
  LoaderOptions loader_options() const;
  /// Bytes that this rank was expected to take, of its device if it has one.
  int64_t forecast_bytes() const;
  /// Bytes of the host that were free before this rank took any for the epoch.
  int64_t free_at_start() const { return free_at_start_; }
  const DeviceForecast& device_forecast() const { return device_forecast_; }
  const DeviceShare& device_share() const { return share_; }

 private:
  void make_plan();
  void check_device_memory();
  void agree();
  void connect(const WrapTransport& wrap);

  Worker& worker_;
  const Membership membership_;
  const Job job_;  // in the epoch's layout
  const std::unique_ptr<Rendezvous> rendezvous_;
  RankContext context_;
  Trace trace_;
  std::shared_ptr<const Plans> plan_;  // ranks that are threads have one
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Channel> main_channel_, loader_channel_, saver_channel_;
  const Partition partition_;
  std::unique_ptr<Collector> collector_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Engine> engine_;
  const int64_t free_at_start_;
  DeviceForecast device_forecast_;
  DeviceShare share_;
};

/// The job in an epoch's layout: on as many ranks and hosts as the epoch has.
Job job_in(const Job& job, const LayoutConfig& layout, const Membership& membership);
/// The plan of such a job. Collective over whoever meets there; throws ConfigError on all of them
/// where the model does not run on the layout.
std::shared_ptr<const Plans> plan_epoch(const Worker& worker, const Job& job,
                                        Rendezvous& rendezvous);
/// The members' connection by the host. Collective; what it is given must be the same everywhere,
/// but for the bytes of this rank's window.
std::unique_ptr<Transport> connect_members(const Job& job, const Membership& membership,
                                           RankContext& context, Rendezvous& rendezvous,
                                           size_t window_bytes, uint64_t plan_hash, bool on_device,
                                           const Patience& patience);

}  // namespace tutti
