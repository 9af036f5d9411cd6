// The tables of a rank are filled in once, in the constructor; groups are looked up among those
// of the plan.
#include "plan/make/homes.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace tutti {

MeshHomes::MeshHomes(const ModelShape& model, const MeshOptions& options, const MeshPlaces& places,
                     const std::vector<std::vector<int>>& groups, int rank)
    : model(model),
      options(options),
      places(places),
      rank(rank),
      at(options.mesh.at(rank)),
      columns(places.columns[at.tensor]),
      groups_(groups),
      owners_(model.blocks.size()),
      users_(model.blocks.size()) {
  // What runs here.
  const int count = static_cast<int>(model.blocks.size());

  // Who shares whose parameters. All blocks count, wherever they run: an owner has to know that
  // users elsewhere read its values and add to its gradient.
  for (int block = 0; block < count; ++block) {
    homes_.push_back(places.home(model, block));
    if (!is_home(block)) continue;
    blocks_.push_back(block);
    if (model.blocks[block].gradient_size > 0) units_.push_back(block);
  }
  for (int block = 0; block < count; ++block) {
    std::set<int> owners;
    for (const Share& share : model.blocks[block].shares) owners.insert(share.unit);
    owners_[block].assign(owners.begin(), owners.end());
    for (int owner : owners) {
      // away: the block runs at another home; apart: it runs here, and its gradient has a buffer
      // of its own.
      const bool away = homes_[block] != homes_[owner],
                 apart = is_home(block) && !together(block, owner);
      Users& users = users_[owner];
      users.remote = users.remote || away;
      users.far = users.far || (away && model.blocks[block].layer != model.blocks[owner].layer);
      users.writes = users.writes || apart || together(block, owner);
      if (apart) apart_.emplace_back(block, owner);
      if (apart && !is_home(owner)) remote_.emplace_back(block, owner);
    }
  }

  // Those who come to a unit's sum, for all units that this rank has to do with.
  std::set<int> met(units_.begin(), units_.end());
  for (const auto& [block, owner] : remote_) met.insert(owner);
  for (int unit : met)
    everyone_[unit] = group_of(tutti::users_and_owners(model, options, places, unit));
}

Range MeshHomes::held(int unit) const {
  return sliced() ? places.slices[unit][options.mesh.shard(at.data)]
                  : Range{0, model.blocks[unit].unit_size};
}

bool MeshHomes::together(int block, int owner) const {
  const auto chunk = [this](int b) { return places.chunk_of_layer[model.blocks[b].layer]; };
  return is_home(owner) && homes_[block] == homes_[owner] && chunk(block) == chunk(owner);
}

Range MeshHomes::extras_of(int block, int owner) const {
  // From the first of the block's gradients to the end of the last, padding included.
  Range range{INT64_MAX, 0};
  for (const Share& share : model.blocks[block].shares) {
    if (share.unit != owner) continue;
    const ParameterShape& p = model.blocks[owner].parameters[share.parameter];
    const int64_t begin = p.extra_gradients[share.extra];
    range.begin = std::min(range.begin, begin);
    range.end = std::max(range.end, align_up(begin + p.size, kAlign));
  }
  return range;
}

bool MeshHomes::shares_far() const {
  return std::any_of(everyone_.begin(), everyone_.end(),
                     [&](const auto& unit) { return shared_far(unit.first); });
}

int MeshHomes::group_of(const std::vector<int>& ranks) const {
  // Groups are sorted (mesh_groups).
  const auto it = std::lower_bound(groups_.begin(), groups_.end(), ranks);
  TUTTI_CHECK(it != groups_.end() && *it == ranks, "no such group");
  return static_cast<int>(it - groups_.begin());
}

/// Ranks of a unit's home with data coordinates in a range.
std::vector<int> MeshHomes::ranks_at(int unit, Range data) const {
  std::vector<int> ranks;
  Coordinates c = homes_[unit];
  for (int64_t d = data.begin; d < data.end; ++d) {
    c.data = static_cast<int>(d);
    ranks.push_back(options.mesh.rank(c));
  }
  return ranks;
}

int MeshHomes::replica(int unit) const {
  // Replicas are consecutive runs of `shards` data ranks.
  const int first = at.data / options.mesh.shards * options.mesh.shards;
  return group_of(ranks_at(unit, {first, first + options.mesh.shards}));
}

int MeshHomes::data_ranks(int unit) const {
  return group_of(ranks_at(unit, {0, options.mesh.data}));
}

int MeshHomes::host_ranks(int unit) const {
  const int first = at.data / places.host_ranks * places.host_ranks;
  return group_of(ranks_at(unit, {first, first + places.host_ranks}));
}

int MeshHomes::position_ranks(int unit) const {
  std::vector<int> ranks;
  const std::vector<int> all = ranks_at(unit, {0, options.mesh.data});

  // One rank of each host, in the order of the hosts.
  for (size_t d = at.data % places.host_ranks; d < all.size(); d += places.host_ranks)
    ranks.push_back(all[d]);
  return group_of(ranks);
}

int MeshHomes::tensor_ranks() const {
  std::vector<int> ranks;
  for (int t = 0; t < options.mesh.tensor; ++t)
    ranks.push_back(options.mesh.rank({at.data, t, at.pipeline}));
  return group_of(ranks);
}

}  // namespace tutti
