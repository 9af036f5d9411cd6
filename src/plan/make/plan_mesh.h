// The generator of plans: a mesh of data, tensor and pipeline ranks with any ZeRO stage,
// schedule, recompute and offload. Data parallelism is the mesh N x 1 x 1. docs/parallelism.md
// has a picture of each.
//
//   stage    a pipeline coordinate; it runs one or more chunks (contiguous layers; Megatron's
//            virtual stages), as plan/make/pipeline_schedule.h says
//   column   one of the S parts that the model is defined in for tensor parallelism; tensor
//            coordinate t runs columns lanes_of(t, T, S) of every layer of its chunks
//   home     the (pipeline, tensor) coordinate where a unit's block runs; its data ranks hold the
//            unit: whole, or (ZeRO) in slices over the shards
//   slot     a flight slot: the buffers of one micro-batch's borders and saved values while it is
//            in flight
//
// A rank's queues are those of QueueUse (plan/ir/program.h) that it needs: compute; data for sums
// and gathers of the data axis; shared for sums over stages; tier for offloaded values; one for
// each direction and side of the pipeline. Exchanges of the tensor axis stand on compute, which
// would wait for them anyway. If overlap is off, the instructions of data and tier are on compute,
// too.
//
// A program says all that a rank takes of memory: every buffer is a region of its own, and an
// engine takes just these. A buffer that is used again is overwritten; whoever still needs it comes
// before, which the checker proves.
#pragma once

#include <string>
#include <vector>

#include "config/plan_keys.h"
#include "grid/mesh.h"
#include "plan/ir/program.h"
#include "plan/ir/shape.h"
#include "plan/make/pipeline_schedule.h"

namespace tutti {

/// The keys of a layout that a plan is made by, and what else it depends on.
struct MeshOptions : PlanKeys {
  Mesh mesh;
  Batch batch;
  bool micro = false;    ///< order = "micro"
  std::vector<int> cut;  ///< the first layer of each chunk but the first; empty: cut by cost
  int optimizer_slots = 2;
  bool windows = true;  ///< ranks of a host can read each other's memory
  /// Ranks compute on devices: what is summed travels as the devices' groups do it (NCCL).
  bool device = false;
  bool ring = false;  ///< reduce = "ring": sums have no order
  /// Forward alone, of one micro-batch, for evaluation.
  bool forward_only = false;

  /// The owner of a slice sums each micro-batch as it comes.
  bool owner() const { return fold == FoldKind::kOwner; }
  /// The first data rank makes all sums.
  bool root() const { return fold == FoldKind::kRoot; }
  /// Moments are kept in the second tier and come in only for Update.
  bool offload_moments() const { return offload != Offload::kNone; }
  /// Parameters are kept there, too, and come in ahead of every use.
  bool offload_parameters() const { return offload == Offload::kAll; }
  SumOptions sums() const { return {batch, mesh.data, owner(), micro}; }
};

/// How many data ranks of a host sum together first, where sums are made by hosts: they make slices
/// of the sums over the host's subtrees; then the ranks with the same slice on all hosts exchange
/// what they made. 0: all data ranks sum at once, because a host has only one of them, has slices
/// that its ranks do not own, or because more would travel by hosts.
int host_ranks_of(const MeshOptions& options);

/// Where everything is. A pure function of model and options, the same on all ranks.
struct MeshPlaces {
  std::vector<Range> chunks;  ///< the layers of each
  std::vector<int> stage;     ///< by chunk
  std::vector<int> chunk_of_layer;
  std::vector<Range> columns;  ///< by tensor coordinate
  /// [unit][one of reduce_shards_of()]: floats that together are [0, unit_size).
  std::vector<std::vector<Range>> slices;
  int host_ranks = 0;  ///< host_ranks_of() of the options
  /// By unit: whether its users may be on any rank, so that it is not summed by hosts.
  std::vector<bool> at_once;

  Coordinates home(const ModelShape& model, int unit) const;  ///< data = 0
  bool by_hosts(int unit) const { return host_ranks > 0 && !at_once[unit]; }
  /// What travels together: first the parcels of sums, then one parcel for every unit that is
  /// merged with others there.
  std::vector<Parcel> parcels;
  std::vector<int> parcel_of;  ///< by unit: the parcel of its sum; -1: it has no parameters
  std::vector<int> alone_in;   ///< by unit: the parcel that has this unit only
  std::vector<std::vector<Cell>> cells;  ///< by stage, in order: what add_schedule() has found
  /// What the ranks at one position (of host_ranks) of all hosts own of a unit, together.
  Range host_slice(int unit, int position) const;
};
MeshPlaces mesh_places(const ModelShape& model, const MeshOptions& options);
/// Finds the order of every stage's work, once for all ranks.
void add_schedule(const ModelShape& model, const MeshOptions& options, MeshPlaces& places);
/// Whether backward computes a segment of a layer a second time.
bool recomputed(const ModelShape& model, const MeshOptions& options, int layer,
                const SegmentShape& segment);
/// Into how many slices a unit's sum is cut: the shards or, with zero = 0, one per data rank (of a
/// host, if sums are made by hosts).
int reduce_shards_of(const MeshOptions& options);
/// The schedule that is run: one stage alone has nothing to choose.
std::string schedule_of(const MeshOptions& options);
/// All data ranks of a unit's home and of the homes of the blocks that share its parameters,
/// ascending.
std::vector<int> users_and_owners(const ModelShape& model, const MeshOptions& options,
                                  const MeshPlaces& places, int unit);
/// All ranks that meet anywhere in the mesh's programs, each list ascending: Plan::groups.
std::vector<std::vector<int>> mesh_groups(const ModelShape& model, const MeshOptions& options,
                                          const MeshPlaces& places);

/// How a unit's sum comes to all data ranks if each of them wants it whole; to those of its host if
/// sums are made by hosts.
enum class Spread : uint8_t {
  kNone,      ///< it does not: owners update their slices, or there is one data rank
  kBorrowed,  ///< every rank reads the slices in their owners' windows
  kReturned,  ///< its Reduce returns it, by messages (with the sum: an all-reduce)
  kGathered,  ///< a Gather copies it (an all-gather)
};
Spread spread_of(const MeshOptions& options, const MeshPlaces& places, int unit);

/// Why this model cannot run on this mesh, one reason per line; empty: it can.
std::vector<std::string> mesh_faults(const ModelShape& model, const MeshOptions& options);

/// All ranks' programs. The options must have no mesh_faults.
Plan plan_mesh(const ModelShape& model, const MeshOptions& options);
/// The same ranks' programs for evaluation: only forward, of one micro-batch, in the memory of the
/// steps' buffers as far as these have the same use.
Plan plan_evaluation(const ModelShape& model, const MeshOptions& options, const Plan& steps);
/// The programs of some ranks only, for simulating many. They have no transfers, and operands that
/// are borrowed do not know their buffer.
std::vector<Program> plan_some_ranks(const ModelShape& model, const MeshOptions& options,
                                     const std::vector<int>& ranks);

}  // namespace tutti
