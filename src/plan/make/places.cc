// The phase of the generator that decides where everything is: layers in chunks on stages, columns
// on tensor ranks, slices on data ranks; which units travel together, how sums come to those who
// want them, and who meets whom. Pure functions of model and options.
#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <utility>

#include "grid/cut.h"
#include "plan/make/pipeline_schedule.h"
#include "plan/make/plan_mesh.h"

namespace tutti {

namespace {

/// Orders slices so that what the ranks at one position own is contiguous: data rank h * L + i, of
/// H hosts with L ranks each, has slice i * H + h.
std::vector<Range> dealt_by_position(const std::vector<Range>& slices, size_t host_ranks) {
  const size_t hosts = slices.size() / host_ranks;
  std::vector<Range> dealt;
  for (size_t d = 0; d < slices.size(); ++d)
    dealt.push_back(slices[d % host_ranks * hosts + d / host_ranks]);
  return dealt;
}

/// The slices of every unit. Most layers are alike, so what was cut for one stands for all with
/// the same parameters.
std::vector<std::vector<Range>> slices_of_units(const ModelShape& model, int parts,
                                                int host_ranks) {
  std::map<std::pair<int64_t, std::vector<std::pair<int64_t, int64_t>>>, std::vector<Range>> cut;
  std::vector<std::vector<Range>> slices;
  for (const BlockShape& block : model.blocks) {
    std::vector<std::pair<int64_t, int64_t>> key;
    std::vector<Range> parameters;
    for (const ParameterShape& p : block.parameters) {
      key.emplace_back(p.offset, p.size);
      parameters.push_back({p.offset, p.offset + p.size});
    }
    const auto [it, fresh] = cut.try_emplace({block.unit_size, std::move(key)});
    if (fresh) it->second = slices_of(parameters, block.unit_size, parts);
    if (fresh && host_ranks > 0)
      it->second = dealt_by_position(it->second, static_cast<size_t>(host_ranks));
    slices.push_back(it->second);
  }
  return slices;
}

/// Slices where one rank makes all sums: the first one has everything, the others have empty
/// ranges.
std::vector<std::vector<Range>> slices_at_root(const ModelShape& model, int parts) {
  std::vector<std::vector<Range>> slices;
  for (const BlockShape& block : model.blocks) {
    slices.emplace_back(static_cast<size_t>(parts), Range{block.unit_size, block.unit_size});
    slices.back()[0] = {0, block.unit_size};
  }
  return slices;
}

/// The layers of every chunk: cut as the user says or, without a cut, so that stages
/// have even FLOPs.
std::vector<Range> chunks_of_layers(const ModelShape& model, const std::vector<int>& cut,
                                    const std::vector<int>& stages) {
  if (cut.empty()) {
    std::vector<double> costs;
    for (int layer = 0; layer < model.layers(); ++layer) {
      double flops = 1;  // a layer without any FLOPs costs something, too
      for (const SegmentShape& segment : model.blocks[model.block_at(layer, 0)].segments)
        flops += segment.flops;
      costs.push_back(flops);
    }
    return cut_by_cost(costs, stages);
  }
  std::vector<Range> ranges;
  int begin = 0;
  for (int next : cut) ranges.push_back({std::exchange(begin, next), next});
  ranges.push_back({begin, model.layers()});
  return ranges;
}

/// Merges units into parcels, as DDP does into gradient buckets. Units are taken from the last to
/// the first, as backward completes them; a unit joins the open parcel if it has the same home
/// and chunk. A unit with further users travels alone, and so does one whose gradient is passed
/// on at once.
void add_parcels(const ModelShape& model, const MeshOptions& options, MeshPlaces& places) {
  const size_t units = model.blocks.size();
  places.parcel_of.assign(units, -1);
  places.alone_in.assign(units, -1);

  // Gradients that are not kept have to leave before the next unit's need their memory.
  const bool kept = options.zero < 2 || !passes_through(options.sums());
  const auto merges = [&](size_t unit) { return kept && !places.at_once[unit]; };
  int64_t floats = 0;  // of the parcel that is open
  size_t last = 0;     // its last unit
  bool open = false;

  for (size_t unit = units; unit-- > 0;) {
    if (model.blocks[unit].gradient_size == 0) continue;
    const auto where = [&](size_t u) {
      return std::pair(places.chunk_of_layer[model.blocks[u].layer],
                       places.home(model, static_cast<int>(u)));
    };
    const bool joins = open && merges(unit) && where(unit) == where(last);
    if (!joins) places.parcels.emplace_back(), floats = 0;
    places.parcels.back().push_back({static_cast<int>(unit), {0, model.blocks[unit].unit_size}});
    places.parcel_of[unit] = static_cast<int>(places.parcels.size()) - 1;
    floats += model.blocks[unit].gradient_size;
    last = unit;
    open = merges(unit) && floats < options.bucket_floats;
  }

  // A gather of ZeRO-3 brings one unit, so each has a parcel of its own as well.
  for (size_t unit = 0; unit < units; ++unit) {
    if (places.parcel_of[unit] < 0) continue;
    places.alone_in[unit] = places.parcel_of[unit];
    if (places.parcels[static_cast<size_t>(places.parcel_of[unit])].size() == 1) continue;
    places.alone_in[unit] = static_cast<int>(places.parcels.size());
    places.parcels.push_back({{static_cast<int>(unit), {0, model.blocks[unit].unit_size}}});
  }
}

/// Whether fewer bytes come to every host if sums are made by hosts. Bytes are counted in slices of
/// the gradient, of which there are `ranks`:
///   by hosts     all subtrees of the other hosts, whole
///   all at once  for each of its ranks, a slice of every partial of the others and, once the sum
///                is done, the slices of the ranks on other hosts
bool whole_sums_are_less(const SumOptions& sums, int together) {
  const int hosts = sums.ranks / together;
  std::vector<int64_t> trees, partials;
  for (int host = 0; host < hosts; ++host) {
    trees.push_back(static_cast<int64_t>(subtrees_of_host(sums, together, host).size()));
    partials.push_back(
        static_cast<int64_t>(round_inside(sums, together, host).contributions.size()));
  }
  const int64_t all_trees = std::accumulate(trees.begin(), trees.end(), int64_t{0});
  const int64_t all_partials = std::accumulate(partials.begin(), partials.end(), int64_t{0});
  for (int host = 0; host < hosts; ++host) {
    // What one rank of the host gets in one level; `together` of them do.
    const int64_t slices = all_partials - partials[host] + sums.ranks - together;
    if ((all_trees - trees[host]) * sums.ranks > slices * together) return false;
  }
  return true;
}

}  // namespace

int host_ranks_of(const MeshOptions& options) {
  const Mesh& mesh = options.mesh;

  // Sums by hosts need hosts, one round, sums that all ranks make, and hosts of whole tensor
  // groups.
  const bool once = !options.owner() && (!options.micro || options.batch.micro_batches == 1);
  if (options.hosts < 2 || !once || options.root() || options.ring ||
      mesh.ranks() % (options.hosts * mesh.tensor) != 0)
    return 0;

  // Consecutive data ranks of one home are on a host. One of them alone has nobody to sum with
  // first, and a host that has all of them nobody to sum with later.
  const int together = mesh.ranks() / options.hosts / mesh.tensor;
  if (together < 2 || together >= mesh.data || mesh.data % together != 0) return 0;

  // ZeRO says who owns the slices; without it there is a choice, so the cheaper way is taken.
  if (options.zero > 0) return mesh.shards == together || mesh.shards == mesh.data ? together : 0;
  return whole_sums_are_less(options.sums(), together) ? together : 0;
}

int reduce_shards_of(const MeshOptions& options) {
  if (options.zero > 0) return options.mesh.shards;
  const int together = host_ranks_of(options);
  return together > 0 ? together : options.mesh.data;
}

Range MeshPlaces::host_slice(int unit, int position) const {
  const auto& all = slices[unit];
  return {all[position].begin, all[all.size() - host_ranks + position].end};
}

std::string schedule_of(const MeshOptions& options) {
  return options.mesh.pipeline == 1 ? plain_schedule() : options.schedule;
}

Coordinates MeshPlaces::home(const ModelShape& model, int unit) const {
  const BlockShape& block = model.blocks[unit];
  Coordinates c;
  c.pipeline = stage[chunk_of_layer[block.layer]];
  while (!columns[c.tensor].contains(block.column)) ++c.tensor;
  return c;
}

MeshPlaces mesh_places(const ModelShape& model, const MeshOptions& options) {
  MeshPlaces places;

  // Layers into chunks, chunks onto stages; columns onto tensor ranks.
  const std::string schedule = schedule_of(options);
  const int stages = options.mesh.pipeline, chunks = stages * chunks_of(schedule, options.chunks);
  for (int chunk = 0; chunk < chunks; ++chunk)
    places.stage.push_back(stage_of(schedule, stages, chunk));
  places.chunks = chunks_of_layers(model, options.cut, places.stage);
  for (int chunk = 0; chunk < chunks; ++chunk)
    for (int64_t layer = places.chunks[chunk].begin; layer < places.chunks[chunk].end; ++layer)
      places.chunk_of_layer.push_back(chunk);
  for (int t = 0; t < options.mesh.tensor; ++t)
    places.columns.push_back(lanes_of(t, options.mesh.tensor, model.columns));

  // Units into slices, and slices onto data ranks.
  places.host_ranks = host_ranks_of(options);
  places.slices = options.root()
                      ? slices_at_root(model, options.mesh.data)
                      : slices_of_units(model, reduce_shards_of(options), places.host_ranks);

  // A unit that others share is summed at once: its users may be on any rank.
  for (const BlockShape& block : model.blocks)
    places.at_once.push_back(
        std::any_of(block.parameters.begin(), block.parameters.end(),
                    [](const ParameterShape& p) { return !p.extra_gradients.empty(); }));

  // Parcels come last: they depend on homes, and on what is summed at once.
  add_parcels(model, options, places);
  return places;
}

bool recomputed(const ModelShape& model, const MeshOptions& options, int layer,
                const SegmentShape& segment) {
  // The ends of the model keep what they save: in most models an embedding and the loss.
  if (options.recompute == Recompute::kNone || layer == 0 || layer + 1 == model.layers())
    return false;
  return options.recompute == Recompute::kFull || segment.attention;
}

void add_schedule(const ModelShape& model, const MeshOptions& options, MeshPlaces& places) {
  const std::string name = schedule_of(options);
  const int chunks = static_cast<int>(places.chunks.size()), stages = options.mesh.pipeline;

  // Evaluation passes one micro-batch down all chunks.
  if (options.forward_only) {
    places.cells.assign(static_cast<size_t>(stages), {});
    for (int chunk = 0; chunk < chunks; ++chunk)
      places.cells[static_cast<size_t>(places.stage[chunk])].push_back(
          {CellKind::kForward, chunk, 0});
    return;
  }

  // Data ranks go in step, so the first one's sequence is as long as everybody's.
  const int micros = static_cast<int>(sequence_of(options.sums(), 0).size());
  if (!splits_backward(name) || options.in_flight == 0) {
    places.cells = make_schedule(name, stages, chunks_of(name, options.chunks), micros);
    return;
  }

  // Costs are what segments declare, never what a rank measured: all ranks must find the same
  // order. Each part of backward costs as much as forward; what is computed again comes on top of
  // the input part.
  std::vector<CellCosts> costs;
  for (const Range& layers : places.chunks) {
    double flops = 1, again = 0;  // a chunk without any costs something, too
    for (int64_t layer = layers.begin; layer < layers.end; ++layer)
      for (const SegmentShape& segment :
           model.blocks[model.block_at(static_cast<int>(layer), 0)].segments) {
        flops += segment.flops;
        if (recomputed(model, options, static_cast<int>(layer), segment)) again += segment.flops;
      }
    costs.push_back({flops, again + flops, flops});
  }

  places.cells = fit_schedule(name, stages, micros, costs, options.in_flight);
}

Spread spread_of(const MeshOptions& options, const MeshPlaces& places, int unit) {
  if (options.zero > 0 || options.mesh.data == 1) return Spread::kNone;

  // Sums by hosts: every host has made all of the sum, so it stays inside the host.
  if (places.host_ranks > 0)
    return options.windows && !options.device ? Spread::kBorrowed : Spread::kGathered;

  // Sums that are kept from round to round have a stack of their own; they are in place of no term,
  // so nobody could find them there.
  const bool in_place = sum_rounds(options.sums()).size() == 1;
  if (options.ring) return Spread::kReturned;
  if (!in_place || options.device) return Spread::kGathered;

  // What is returned goes to all who take part in the sum; but users on other stages or tensor
  // ranks have no room for it.
  const bool far =
      places.at_once[static_cast<size_t>(unit)] && options.mesh.tensor * options.mesh.pipeline > 1;
  if (far && !options.windows) return Spread::kGathered;
  if (options.hosts == 1) return options.windows ? Spread::kBorrowed : Spread::kReturned;

  // With windows, some ranks reach each other's and some do not: a Gather copes with both.
  return options.windows ? Spread::kGathered : Spread::kReturned;
}

std::vector<int> users_and_owners(const ModelShape& model, const MeshOptions& options,
                                  const MeshPlaces& places, int unit) {
  std::vector<Coordinates> homes{places.home(model, unit)};
  for (size_t b = 0; b < model.blocks.size(); ++b)
    for (const Share& share : model.blocks[b].shares) {
      if (share.unit != unit) continue;
      const Coordinates user = places.home(model, static_cast<int>(b));
      if (std::find(homes.begin(), homes.end(), user) == homes.end()) homes.push_back(user);
    }

  // A home stands for all its data ranks.
  std::vector<int> ranks;
  for (Coordinates home : homes)
    for (home.data = 0; home.data < options.mesh.data; ++home.data)
      ranks.push_back(options.mesh.rank(home));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<std::vector<int>> mesh_groups(const ModelShape& model, const MeshOptions& options,
                                          const MeshPlaces& places) {
  const Mesh& mesh = options.mesh;

  // A set has no duplicates and is sorted, so that MeshHomes can search it; every rank numbers
  // the groups alike.
  std::set<std::vector<int>> groups;

  for (int p = 0; p < mesh.pipeline; ++p)
    for (int d = 0; d < mesh.data; ++d) {
      std::vector<int> tensor;
      for (int t = 0; t < mesh.tensor; ++t) tensor.push_back(mesh.rank({d, t, p}));
      groups.insert(std::move(tensor));
    }

  // Every home has these groups: the ranks that slice one replica; for sums by hosts, those of a
  // host and those at one position of all hosts; and all its data ranks.
  for (int p = 0; p < mesh.pipeline; ++p)
    for (int t = 0; t < mesh.tensor; ++t) {
      std::vector<int> all;
      for (int d = 0; d < mesh.data; ++d) all.push_back(mesh.rank({d, t, p}));
      for (int d = 0; d < mesh.data; d += mesh.shards)
        groups.insert(std::vector<int>(all.begin() + d, all.begin() + d + mesh.shards));
      for (int d = 0; d < mesh.data && places.host_ranks > 0; d += places.host_ranks)
        groups.insert(std::vector<int>(all.begin() + d, all.begin() + d + places.host_ranks));
      for (int i = 0; i < places.host_ranks; ++i) {
        std::vector<int> between;
        for (int d = i; d < mesh.data; d += places.host_ranks) between.push_back(all[d]);
        groups.insert(std::move(between));
      }
      groups.insert(std::move(all));
    }

  // For every unit: those who come to its sum, and to the refresh of its copies.
  for (size_t u = 0; u < model.blocks.size(); ++u)
    groups.insert(users_and_owners(model, options, places, static_cast<int>(u)));
  return {groups.begin(), groups.end()};
}

}  // namespace tutti
