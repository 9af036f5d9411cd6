// NCCL makes a communicator of an id that one member has drawn. So every rank draws the ids of the
// groups that it is the first member of, all of them are exchanged by the rendezvous, and every
// rank finds the ids of its groups by counting: the order of a rank's ids is
//   world, shared (rank 0 alone), columns (tensor coordinate 0 alone), links that it sends on
#include "engine/device/device_groups.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "config/timeout.h"
#include "engine/device/kind.h"

namespace tutti {

namespace {

// Thread blocks that the kernels of one group may take. Kernels of several groups wait next to each
// other and next to the compute, and together they leave most of a device to it.
constexpr int kLinkBlocks = 4, kMeetingBlocks = 16;

bool has_shared_queue(const Plan& plan) {
  for (const Program& program : plan.programs)
    for (const Queue& queue : program.queues)
      if (queue.use == QueueUse::kShared) return true;
  return false;
}

/// The ids as text: each of them after its length.
std::string packed(const std::vector<std::string>& ids) {
  std::string text;
  for (const std::string& id : ids) {
    const auto size = static_cast<uint32_t>(id.size());
    text.append(reinterpret_cast<const char*>(&size), sizeof size).append(id);
  }
  return text;
}
std::vector<std::string> unpacked(const std::string& text) {
  std::vector<std::string> ids;
  for (size_t at = 0; at < text.size();) {
    uint32_t size = 0;
    TUTTI_CHECK(at + sizeof size <= text.size(), "a group's id is cut off");
    std::memcpy(&size, text.data() + at, sizeof size);
    at += sizeof size;
    TUTTI_CHECK(at + size <= text.size(), "a group's id is cut off");
    ids.push_back(text.substr(at, size));
    at += size;
  }
  return ids;
}

}  // namespace

Link link_of(const Instruction& instruction, QueueUse queue, int rank) {
  Link link{rank, instruction.peer, way_of(queue)};
  if (instruction.op == Op::kRecv) std::swap(link.from, link.to);
  return link;
}

std::vector<Link> links_of(const Plan& plan, const Plan& forward) {
  std::set<Link> links;
  for (const Plan* p : {&plan, &forward})
    for (const Program& program : p->programs)
      for (const Queue& queue : program.queues)
        for (const Instruction& i : queue.instructions)
          if (i.op == Op::kSend) links.insert(link_of(i, queue.use, program.rank));
  return {links.begin(), links.end()};
}

DeviceGroups::DeviceGroups(const EngineParts& parts, const RankDevice& device) {
  const DeviceLibrary& library = *device.library;
  const Plan& plan = parts.plans.of(Which::kSteps);
  const int rank = parts.context.rank, size = parts.context.size;
  if (size == 1) return;
  const Coordinates at = plan.mesh.at(rank);

  GroupOptions options;
  options.host = host_of(rank, size, static_cast<int>(parts.training.job.layout.hosts));
  for (int r = 0; r < size; ++r)
    options.shares |= ranks_on_device(parts.training.job, r, library.count()) > 1;

  // The first member of a group draws its id: rank 0 that of the world, tensor coordinate 0 that of
  // its columns, and a sender those of its links.
  const std::vector<Link> links = links_of(plan, parts.plans.of(Which::kEvaluation));
  std::vector<std::string> made;
  const auto make = [&] { made.push_back(library.group_id(options.shares)); };
  const bool shared = has_shared_queue(plan);
  const int of_all = shared ? 2 : 1;
  for (int k = 0; rank == 0 && k < of_all; ++k) make();
  if (plan.mesh.tensor > 1 && at.tensor == 0) make();
  for (const Link& link : links)
    if (link.from == rank) make();

  // Everybody learns all ids.
  const Duration timeout = timeout_of(parts.training.job);
  std::vector<std::vector<std::string>> ids;
  for (const Card& card : parts.context.rendezvous.exchange({.bytes = packed(made)},
                                                            parts.context.while_working(timeout)))
    ids.push_back(unpacked(card.bytes));

  // Joining is collective in each group. All ranks go through their groups in the same order, so no
  // two wait for each other in different ones.
  const auto join = [&](int member, int members, const std::string& id, int blocks) {
    options.rank = member, options.size = members, options.id = id, options.blocks = blocks;
    return library.join(*device.device, options, parts.context.clock,
                        parts.context.clock.after(timeout), &parts.context.control.cancel);
  };
  world_ = join(rank, size, ids[0].at(0), kMeetingBlocks);
  if (shared) shared_ = join(rank, size, ids[0].at(1), kMeetingBlocks);
  if (plan.mesh.tensor > 1) {
    const int first = plan.mesh.rank({at.data, 0, at.pipeline});
    columns_ =
        join(at.tensor, plan.mesh.tensor, ids[first].at(first == 0 ? of_all : 0), kMeetingBlocks);
  }

  // All links are walked, also those of other ranks, since a sender's ids are counted in the order
  // of its links. They begin after the ids that it drew before.
  std::map<int, size_t> next;  // by sender: its next link's id
  for (const Link& link : links) {
    const auto [it, fresh] = next.try_emplace(link.from, 0);
    if (fresh)
      it->second = (link.from == 0 ? of_all : 0) +
                   (plan.mesh.tensor > 1 && plan.mesh.at(link.from).tensor == 0 ? 1 : 0);
    const std::string& id = ids[link.from].at(it->second++);
    if (link.from != rank && link.to != rank) continue;
    links_.emplace_back(link, join(link.from == rank ? 0 : 1, 2, id, kLinkBlocks));
  }
}

DeviceGroup& DeviceGroups::link(const Link& link) const {
  const auto found =
      std::find_if(links_.begin(), links_.end(), [&](const auto& l) { return l.first == link; });
  TUTTI_CHECK(found != links_.end(), "no group for {} from rank {} to rank {}",
              queue_name(link.way), link.from, link.to);
  return *found->second;
}

DeviceGroup* DeviceGroups::meeting(QueueUse queue) const {
  return queue == QueueUse::kShared ? shared_.get() : world_.get();
}

std::vector<DeviceGroup*> DeviceGroups::all() const {
  std::vector<DeviceGroup*> groups;
  for (DeviceGroup* group : {world_.get(), shared_.get(), columns_.get()})
    if (group != nullptr) groups.push_back(group);
  for (const auto& [link, group] : links_) groups.push_back(group.get());
  return groups;
}

void DeviceGroups::greet(Stream stream, std::byte* scratch) const {
  for (DeviceGroup* group : all()) {
    std::vector<DeviceSend> sends;
    std::vector<DeviceReceive> receives;
    // In a link only the sender sends, as in a step.
    const bool link = group != world_.get() && group != shared_.get() && group != columns_.get();
    for (int peer = 0; peer < group->size(); ++peer) {
      if (peer == group->rank()) continue;
      if (!link || group->rank() == 0) sends.push_back({peer, scratch + peer * 256, 1});
      if (!link || group->rank() == 1)
        receives.push_back({peer, scratch + (group->size() + peer) * 256, 1});
    }
    group->exchange(stream, sends, receives);

    // A sum opens connections of its own.
    if (group == world_.get()) group->sum(stream, reinterpret_cast<double*>(scratch), 1);
  }
}

DeviceGroups::Count DeviceGroups::count(const Plan& plan, const Plan& forward, int rank) {
  // The same as the constructor joins, for a forecast of memory.
  Count groups;
  if (plan.ranks == 1) return groups;
  groups.meetings = (has_shared_queue(plan) ? 2 : 1) + (plan.mesh.tensor > 1 ? 1 : 0);
  for (const Link& link : links_of(plan, forward))
    groups.links += link.from == rank || link.to == rank ? 1 : 0;
  return groups;
}

}  // namespace tutti
