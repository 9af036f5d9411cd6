// The connections of a mesh's ranks between their devices (communicators). Two operations of one
// group never overtake each other, on whichever streams they are, so everything that may have to
// wait separately has a group of its own:
//
//   world     reduces, gathers and the vote of one queue, that of the data axis. Those over stages
//             have a queue of their own, and a second group
//   columns   exchanges of the tensor axis, among its ranks
//   link      messages of one kind from one rank to another, one group of two for each: in a
//             pipeline activations come in while others still go out
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "engine/device/rank_device.h"
#include "engine/parts.h"

namespace tutti {

/// Messages of one way (activations, gradients) from one rank to another. Links have the
/// same order on all ranks.
struct Link {
  int from = 0, to = 0;
  QueueUse way = QueueUse::kActivationsIn;
  auto operator<=>(const Link&) const = default;
};
/// The link that a Send or Recv on that queue of a rank goes over.
Link link_of(const Instruction& instruction, QueueUse queue, int rank);
/// The links of both plans, ascending.
std::vector<Link> links_of(const Plan& plan, const Plan& forward);

class DeviceGroups {
 public:
  /// Collective: joins all groups of this rank, one after the other, in an order that is
  /// the same everywhere.
  DeviceGroups(const EngineParts& parts, const RankDevice& device);

  DeviceGroup* world() const { return world_.get(); }  ///< null: there is one rank
  /// The group of all ranks, for what is on that queue.
  DeviceGroup* meeting(QueueUse queue) const;
  /// Member t has tensor coordinate t; null: there is one tensor rank.
  DeviceGroup* columns() const { return columns_.get(); }
  /// The sender is member 0, and the receiver member 1.
  DeviceGroup& link(const Link& link) const;
  std::vector<DeviceGroup*> all() const;
  /// Everyone sends everyone a byte, on that stream. So connections are made by both ends at once:
  /// a step, whose ranks do different things at a time, could not wait for that.
  void greet(Stream stream, std::byte* scratch) const;
  /// Bytes of scratch that greet() takes.
  static int64_t greeting_bytes(int ranks) { return 2 * int64_t{ranks} * 256; }
  /// How many groups a rank joins: with all ranks or with its columns, and with one other rank.
  struct Count {
    int meetings = 0, links = 0;
  };
  static Count count(const Plan& plan, const Plan& forward, int rank);

 private:
  std::unique_ptr<DeviceGroup> world_, shared_, columns_;
  std::vector<std::pair<Link, std::unique_ptr<DeviceGroup>>> links_;
};

}  // namespace tutti
