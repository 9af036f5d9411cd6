// The connections of a mesh's ranks on their devices. Two operations of one group never overtake
// each other, on whichever streams they stand, so everything that may wait apart has a group of its
// own:
//
//   world     reduces, gathers and the vote of one queue: the data's; those over stages have a
//             queue of their own, and a second group
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

/// Messages of one way (activations, gradients) from one rank to another. Ordered alike on all
/// ranks.
struct Link {
  int from = 0, to = 0;
  QueueUse way = QueueUse::kActivationsIn;
  auto operator<=>(const Link&) const = default;
};
/// Which link a Send or Recv on that queue of a rank goes over.
Link link_of(const Instruction& instruction, QueueUse queue, int rank);
/// All of both plans, ascending.
std::vector<Link> links_of(const Plan& plan, const Plan& forward);

class DeviceGroups {
 public:
  /// Collective: joins all of this rank's groups, one after the other in an order that is the same
  /// everywhere.
  DeviceGroups(const EngineParts& parts, const RankDevice& device);

  DeviceGroup* world() const { return world_.get(); }  ///< null: one rank
  /// Of all ranks, for what stands on that queue.
  DeviceGroup* meeting(QueueUse queue) const;
  /// member t has tensor coordinate t; null: one tensor rank
  DeviceGroup* columns() const { return columns_.get(); }
  /// The sender is its member 0, the receiver 1.
  DeviceGroup& link(const Link& link) const;
  std::vector<DeviceGroup*> all() const;
  /// Everyone sends everyone a byte, on that stream: connections are made by both ends at once,
  /// which a step, whose ranks do different things at a time, could not wait for.
  void greet(Stream stream, std::byte* scratch) const;
  /// Bytes of greet()'s scratch.
  static int64_t greeting_bytes(int ranks) { return 2 * int64_t{ranks} * 256; }
  /// How many a rank joins: with everybody or its columns, and with one other.
  struct Count {
    int meetings = 0, links = 0;
  };
  static Count count(const Plan& plan, const Plan& forward, int rank);

 private:
  std::unique_ptr<DeviceGroup> world_, shared_, columns_;
  std::vector<std::pair<Link, std::unique_ptr<DeviceGroup>>> links_;
};

}  // namespace tutti
