// The generator of plans: a mesh of data, tensor and pipeline ranks with any ZeRO stage, schedule,
// recompute and offload. Data parallelism is the mesh N x 1 x 1. docs/parallelism.md has a picture
// of each.
//
//   stage      pipeline coordinate; it runs one or more chunks (contiguous layers), as
//              plan/make/pipeline_schedule.h
//   says column     a logical tensor slice; tensor coordinate t runs columns lanes_of(t, T, S) of
//                   every layer of its
//   chunks home       the (pipeline, tensor) coordinate where a unit's block runs; its data ranks
//                     hold the unit: whole,
//   or
//              (ZeRO) in slices over the shards
//   slot       the place of a micro-batch in flight: buffers of its borders and saved values
//
// A rank's queues: "compute"; "data" (reduces and gathers of the data axis); "tensor" does not
// exist: exchanges stand on compute, which waits for them anyway; one queue per pipeline direction
// and side: "activations in", "activations out", "gradients in", "gradients out". Where overlap is
// off, data's instructions stand on compute.
//
// Memory is said wholly by the program: every buffer is a region of its own, and an engine takes
// just these. A buffer that is used again is overwritten; who still needs it comes before (the
// checker proves it).
#pragma once

#include <string>
#include <vector>

#include "config/job.h"
#include "grid/mesh.h"
#include "plan/ir/program.h"
#include "plan/ir/shape.h"
#include "plan/make/pipeline_schedule.h"

namespace tutti {

enum class Recompute : uint8_t { kNone, kSelective, kFull };

struct MeshOptions {
  Mesh mesh;
  Batch batch;
  int zero = 0;
  bool owner = false;  ///< fold = "owner"
  bool micro = false;  ///< order = "micro"
  std::string schedule = "1f1b";
  int chunks = 1;  ///< a stage, for interleaved
  /// micro-batches that a chunk keeps, in an order made to measure; 0: the published order
  int in_flight = 0;
  std::vector<int> cut;  ///< the first layer of each chunk but the first; empty: cut by cost
  Recompute recompute = Recompute::kNone;
  bool overlap = true;
  int depth = 1;  ///< ZeRO-3: units gathered ahead of their use
  int optimizer_slots = 2;
  /// moments live in the second tier and come in for Update alone
  bool offload = false;
  bool offload_parameters = false;  ///< parameters do, too, and come in ahead of every use
  bool windows = true;              ///< ranks of a host can read each other's memory
  /// ranks compute on devices: what is summed travels as the devices' groups do it
  bool device = false;
  int hosts = 1;      ///< ranks are grouped into hosts in order
  bool root = false;  ///< fold = "root": the first data rank makes all sums
  bool ring = false;  ///< reduce = "ring": sums have no order
  /// units are merged into a parcel until it has so many
  int64_t merged_floats = kParcelFloats;
  /// Forward alone, of one micro-batch, for evaluation.
  bool forward_only = false;

  SumOptions sums() const { return {batch, mesh.data, owner, micro}; }
};

/// Sums in two levels: so many data ranks of a host make slices of the sums over the host's
/// subtrees, then those of all hosts that have the same slice exchange what they made. 0: all data
/// ranks sum at once; a host has one of them, or slices that its ranks do not own, or more would
/// travel.
int host_ranks_of(const MeshOptions& options);

/// Where everything is. A pure function of model and options, the same on all ranks.
struct MeshPlaces {
  std::vector<Range> chunks;  ///< layers of each
  std::vector<int> stage;     ///< by chunk
  std::vector<int> chunk_of_layer;
  std::vector<Range> columns;  ///< by tensor coordinate
  /// [unit][of reduce_shards]: floats, together [0, unit_size)
  std::vector<std::vector<Range>> slices;
  int host_ranks = 0;  ///< host_ranks_of
  /// by unit: its users may be anywhere, so that it is not summed by hosts
  std::vector<bool> at_once;

  Coordinates home(const ModelShape& model, int unit) const;  ///< data = 0
  bool by_hosts(int unit) const { return host_ranks > 0 && !at_once[unit]; }
  /// What travels together: the parcels of sums, then one for every unit that is merged with others
  /// there.
  std::vector<Parcel> parcels;
  std::vector<int> parcel_of;            ///< by unit: that of its sum; -1: it has no parameters
  std::vector<int> alone_in;             ///< by unit: that which is its alone
  std::vector<std::vector<Cell>> cells;  ///< by stage, in order: what add_schedule() has found
  /// What the ranks at a position (of host_ranks) of all hosts own of a unit, together.
  Range host_slice(int unit, int position) const;
};
MeshPlaces mesh_places(const ModelShape& model, const MeshOptions& options);
/// Finds the order of every stage's work, once for all ranks.
void add_schedule(const ModelShape& model, const MeshOptions& options, MeshPlaces& places);
/// Whether backward computes a segment of a layer a second time.
bool recomputed(const ModelShape& model, const MeshOptions& options, int layer,
                const SegmentShape& segment);
/// Into how many slices a unit's sum is cut: the shards, or with zero = 0 one a data rank (of a
/// host, with two levels).
int reduce_shards_of(const MeshOptions& options);
/// The schedule that is run: a pipeline of one stage has nothing to choose.
std::string schedule_of(const MeshOptions& options);
/// All data ranks of a unit's home and of the homes of those that share its parameters, ascending.
std::vector<int> users_and_owners(const ModelShape& model, const MeshOptions& options,
                                  const MeshPlaces& places, int unit);
/// All ranks that meet anywhere in the mesh's programs, each list ascending: Plan::groups.
std::vector<std::vector<int>> mesh_groups(const ModelShape& model, const MeshOptions& options,
                                          const MeshPlaces& places);

/// How a unit's sum comes to all data ranks, where each of them wants it whole; to those of its
/// host, where sums have two levels.
enum class Spread : uint8_t {
  kNone,      ///< it does not: owners update their slices, or there is one data rank
  kBorrowed,  ///< every rank reads the slices in their owners' windows
  kReturned,  ///< its Reduce returns it, by messages
  kGathered,  ///< a Gather copies it
};
Spread spread_of(const MeshOptions& options, const MeshPlaces& places, int unit);

/// Why this model cannot run on this mesh, a reason a line; empty: it can.
std::vector<std::string> mesh_faults(const ModelShape& model, const MeshOptions& options);

/// All ranks' programs. The options must have no mesh_faults.
Plan plan_mesh(const ModelShape& model, const MeshOptions& options);
/// The same ranks' programs for evaluation: forward alone, of one micro-batch, in the memory of the
/// steps' buffers where they have such.
Plan plan_evaluation(const ModelShape& model, const MeshOptions& options, const Plan& steps);
/// The programs of some ranks alone, for simulating many. They have no transfers, and do not know
/// what they borrow.
std::vector<Program> plan_some_ranks(const ModelShape& model, const MeshOptions& options,
                                     const std::vector<int>& ranks);

}  // namespace tutti
