// One rank of a mesh: its plan, memory, values and engine, for a trainer whose layout is more than plain data
// parallelism.
#pragma once

#include <memory>
#include <string>

#include "engine/device/ddp.h"
#include "engine/host/mesh.h"
#include "state/collect.h"

namespace tutti {

/// What the job's layout asks for. `slots`: of the optimizer.
MeshOptions mesh_options(const Job& job, const ModelShape& shape, int slots);

class MeshRank {
 public:
  /// Plans, and proves the plan. Throws ConfigError naming why the model does not run on this mesh. Everything must
  /// outlive it.
  MeshRank(const Job& job, const Model& model, const ModelShape& shape, const Updater& updater, int rank);

  const Plan& plan() const { return plan_; }
  const MeshOptions& options() const { return options_; }
  int64_t window_bytes() const;
  /// Bytes that the rank will take.
  int64_t forecast(bool windows) const;
  DeviceForecast device_forecast() const;
  /// Bytes of ATen's temporaries on a device.
  int64_t pool_bytes() const { return aten_bytes(model_, plan_.programs[rank_]); }
  /// Micro-batches of a step in the order in which the program loads them.
  std::vector<MicroBatch> sequence() const;
  /// All that pass through the ranks of this one's pipeline, whether it loads them or not, and those in which it idles.
  std::vector<MicroBatch> passes() const { return sequence_of(options_.sums(), options_.mesh.at(rank_).data); }

  /// Takes memory and initialises what this rank holds: on the device, where there is one. Collective.
  void place(Transport& transport, Channel& channel, Accounts& accounts, Device* device = nullptr);
  StateCounters load(const std::string& checkpoint);
  /// Collective; after load().
  std::unique_ptr<Engine> make_engine(RankContext& context, Accounts& accounts, Trace& trace, Transport& transport,
                                      Loader& loader, const RankDevice* device = nullptr);
  Collector& state() { return *collector_; }

 private:
  const Job& job_;
  const Model& model_;
  const ModelShape& shape_;
  const Updater& updater_;
  const int rank_;
  MeshOptions options_, forward_options_;
  Plan plan_, forward_plan_;
  std::unique_ptr<MeshMemory> memory_;
  std::unique_ptr<MeshUnits> units_;
  std::unique_ptr<Collector> collector_;
};

}  // namespace tutti
