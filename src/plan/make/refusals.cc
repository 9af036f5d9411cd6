// Why a model cannot run on a mesh. Every reason stands alongside what it protects; the generator
// checks nothing again.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>

#include "plan/make/pipeline_schedule.h"
#include "plan/make/plan_mesh.h"

namespace tutti {

namespace {

/// Whether some block uses parameters of a unit that has another home.
bool shares_over_ranks(const ModelShape& model, const MeshOptions& options) {
  const MeshPlaces places = mesh_places(model, options);
  for (size_t b = 0; b < model.blocks.size(); ++b)
    for (const Share& share : model.blocks[b].shares)
      if (places.home(model, static_cast<int>(b)) != places.home(model, share.unit)) return true;
  return false;
}

/// Whether some block uses parameters of a unit in another chunk.
bool shares_over_chunks(const ModelShape& model, const MeshOptions& options) {
  const MeshPlaces places = mesh_places(model, options);
  for (const BlockShape& block : model.blocks)
    for (const Share& share : block.shares)
      if (places.chunk_of_layer[block.layer] !=
          places.chunk_of_layer[model.blocks[share.unit].layer])
        return true;
  return false;
}

/// Faults of the layers' cut into chunks.
void add_cut_faults(const ModelShape& model, const MeshOptions& options, int chunks,
                    std::vector<std::string>& faults) {
  const int stages = options.mesh.pipeline, each = chunks / stages;
  const std::vector<int>& cut = options.cut;
  const std::string asked = each > 1 ? fmt::format("{} stages of {} chunks", stages, each)
                                     : fmt::format("{} stages", stages);

  // Every chunk needs a layer, and a cut that the user gives must make as many parts.
  if (model.layers() < chunks)
    faults.push_back(
        fmt::format("{} need {} blocks, but the model has {}", asked, chunks, model.layers()));
  if (!cut.empty() && static_cast<int>(cut.size()) + 1 != chunks)
    faults.push_back(
        fmt::format("the cut makes {} parts, but {} need {}", cut.size() + 1, asked, chunks));

  // Parts that overlap or are empty could not be run.
  if (!std::is_sorted(cut.begin(), cut.end(), std::less_equal<>()) ||
      (!cut.empty() && (cut.front() < 1 || cut.back() >= model.layers())))
    faults.push_back(
        "layout.cut: its blocks must come one after the other, after the model's first");
}

/// Faults of lanes and columns over their axes.
void add_batch_faults(const ModelShape& model, const MeshOptions& options,
                      std::vector<std::string>& faults) {
  const Mesh& mesh = options.mesh;
  const int lanes = options.batch.lanes;
  if (model.columns < mesh.tensor)
    faults.push_back(fmt::format(
        "{} tensor ranks but the model is defined in {} columns: a rank owns at least one",
        mesh.tensor, model.columns));
  if (lanes < mesh.data)
    faults.push_back(
        fmt::format("{} data ranks but {} lanes: a rank owns at least one", mesh.data, lanes));

  // With fold = "owner" a round has one micro-batch per rank, so the first micro-batches of all
  // lanes are summed before the second ones: only order = "micro" sums that way.
  if (options.owner() && options.batch.micro_batches > 1 && !options.micro)
    faults.push_back("fold = \"owner\" needs micro_batches = 1 or order = \"micro\"");
}

/// Parameters in the second tier are in nobody's window.
void add_offload_faults(const ModelShape& model, const MeshOptions& options,
                        std::vector<std::string>& faults) {
  if (!options.offload_parameters()) return;
  if (options.mesh.shards > 1)
    faults.push_back(
        "ZeRO's slices are read by other ranks, so parameters cannot be offloaded; offload the "
        "optimizer");

  // Places can only be worked out for a mesh without faults so far.
  if (faults.empty() && shares_over_ranks(model, options))
    faults.push_back(
        "parameters that other ranks share are read there, so they cannot be offloaded");
}

/// Faults of a stage with several chunks that sums more than once in a step.
void add_chunk_faults(const ModelShape& model, const MeshOptions& options,
                      std::vector<std::string>& faults) {
  if (!options.owner() && !options.micro) return;
  if (faults.empty() && shares_over_chunks(model, options))
    faults.push_back(
        fmt::format("schedule = \"{}\" has several chunks per stage: a parameter that two of them "
                    "share can be summed "
                    "only once in a step, not with fold = \"owner\" or order = \"micro\"",
                    schedule_of(options)));
}

/// Zero-bubble schedules need every segment to split its backward.
void add_split_faults(const ModelShape& model, const std::string& schedule,
                      std::vector<std::string>& faults) {
  std::set<std::string> whole;
  for (const BlockShape& block : model.blocks)
    for (const SegmentShape& segment : block.segments)
      if (!segment.splits) whole.insert(block.name + "." + segment.name);
  if (!whole.empty())
    faults.push_back(fmt::format("schedule = \"{}\" runs backward in two parts, which {} cannot",
                                 schedule, fmt::join(whole, ", ")));
}

}  // namespace

std::vector<std::string> mesh_faults(const ModelShape& model, const MeshOptions& options) {
  std::vector<std::string> faults;
  const Mesh& mesh = options.mesh;
  const std::string schedule = schedule_of(options);
  const int chunks = mesh.pipeline * chunks_of(schedule, options.chunks);

  // Cut, lanes and columns come first: checks after them work out places, which need these
  // to be sound.
  add_cut_faults(model, options, chunks, faults);
  add_batch_faults(model, options, faults);
  add_offload_faults(model, options, faults);
  if (mesh.shards < 1 || mesh.data % mesh.shards != 0)
    faults.push_back(
        fmt::format("{} data ranks cannot be cut into shards of {}", mesh.data, mesh.shards));
  if (chunks > mesh.pipeline) add_chunk_faults(model, options, faults);
  if (splits_backward(schedule)) add_split_faults(model, schedule, faults);
  return faults;
}

}  // namespace tutti
