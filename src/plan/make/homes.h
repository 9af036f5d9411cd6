// What one rank of a mesh lives with: the blocks that run there, the units whose home it is, and
// who shares whose parameters. Predicates and tables of model and options; what is done with them
// is said in plan/make/work.h.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "plan/make/plan_mesh.h"

namespace tutti {

/// All arguments must outlive it.
class MeshHomes {
 public:
  MeshHomes(const ModelShape& model, const MeshOptions& options, const MeshPlaces& places,
            const std::vector<std::vector<int>>& groups, int rank);

  const ModelShape& model;
  const MeshOptions& options;
  const MeshPlaces& places;
  const int rank;
  const Coordinates at;
  const Range columns;  ///< those that run here

  // What the layout makes of parameters.
  int reduce_shards() const { return reduce_shards_of(options); }
  bool sliced() const { return options.mesh.shards > 1; }
  bool gathers() const { return options.zero == 3 && sliced(); }
  /// Whether visits find parameters in slots that are filled ahead of them, by gathers or from
  /// the second tier.
  bool brought() const { return gathers() || options.offload_parameters(); }
  /// My slice of a unit's sum. held(): what I hold of its moments, and in ZeRO-3 of its parameters.
  Range slice(int unit) const { return places.slices[unit][at.data % reduce_shards()]; }
  Range held(int unit) const;

  // What runs and lives here.
  bool runs(int chunk) const { return places.stage[chunk] == at.pipeline; }
  bool is_home(int unit) const { return homes_[unit] == Coordinates{0, at.tensor, at.pipeline}; }
  const std::vector<int>& blocks() const { return blocks_; }  ///< ascending
  const std::vector<int>& units() const { return units_; }  ///< those of them that have parameters
  const std::vector<SegmentShape>& segments(int layer) const {
    return model.blocks[model.block_at(layer, 0)].segments;
  }
  const SegmentShape& segment(int layer, int column, int number) const {
    return model.blocks[model.block_at(layer, column)].segments[number];
  }
  int last_segment(int layer) const { return static_cast<int>(segments(layer).size()) - 1; }

  // Shared parameters. A share is (the block that uses some, the unit that owns them).
  using Shares = std::vector<std::pair<int, int>>;
  /// The units whose parameters a block shares, ascending.
  const std::vector<int>& owners_of(int block) const { return owners_[block]; }
  /// Shares of my blocks whose gradients are stored apart from the owner's own.
  const Shares& shares_apart() const { return apart_; }
  /// Those of shares_apart() whose owners are on other ranks.
  const Shares& remote_shares() const { return remote_; }
  /// Whether a block's gradients of an owner's parameters are stored after the owner's own, in one
  /// buffer. This needs both in one chunk: their visits then follow one another, so that what one
  /// micro-batch left there is added up before the next one writes it.
  bool together(int block, int owner) const;
  /// Where a block's gradients of an owner's parameters are in the owner's gradient space: one
  /// range, since they follow one another.
  Range extras_of(int block, int owner) const;
  bool has_remote_users(int unit) const { return users_[unit].remote; }
  /// Whether a block of another layer on other ranks uses parameters of the unit.
  bool shared_far(int unit) const { return users_[unit].far; }
  /// Whether another block writes gradients of the unit here, after its own or apart.
  bool has_other_writers(int unit) const { return users_[unit].writes; }
  /// Whether any parameter that this rank has is shared far.
  bool shares_far() const;

  // Who meets, as indices of the plan's groups.
  int replica(int unit) const;
  /// All data ranks of a unit's home.
  int data_ranks(int unit) const;
  /// The data ranks of a unit's home on my host, which sum first if sums are made by hosts.
  int host_ranks(int unit) const;
  /// The ranks, one on each host, that own the same part of their host's sum as I do.
  int position_ranks(int unit) const;
  int tensor_ranks() const;  ///< those of my stage and data coordinate
  /// All data ranks of a unit's home and of the homes of those that share its parameters.
  int users_and_owners(int unit) const { return everyone_.at(unit); }

 private:
  struct Users {
    bool remote = false, far = false, writes = false;
  };
  std::vector<int> ranks_at(int unit, Range data) const;
  int group_of(const std::vector<int>& ranks) const;

  const std::vector<std::vector<int>>& groups_;
  std::vector<Coordinates> homes_;  // by unit
  std::vector<int> blocks_, units_;
  std::vector<std::vector<int>> owners_;  // by block
  Shares apart_, remote_;
  std::vector<Users> users_;     // by unit
  std::map<int, int> everyone_;  // group by unit: my units and the owners of my remote shares
};

}  // namespace tutti
