// A group travels as its epoch and the numbers of its members. Both ends are on one host, so the
// bytes are those in memory.
#include "net/rendezvous/rendezvous_frames.h"

#include <cstring>

#include "base/error.h"

namespace tutti {

std::string to_bytes(const Group& group) {
  std::string bytes(sizeof(uint32_t) + group.members.size() * sizeof(int), '\0');
  std::memcpy(bytes.data(), &group.epoch, sizeof(uint32_t));
  std::memcpy(bytes.data() + sizeof(uint32_t), group.members.data(),
              group.members.size() * sizeof(int));
  return bytes;
}

Group group_from(const std::string& bytes) {
  if (bytes.size() < sizeof(uint32_t) || bytes.size() % sizeof(int) != 0)
    throw Error("rendezvous: what arrived names no group");
  Group group;
  std::memcpy(&group.epoch, bytes.data(), sizeof(uint32_t));
  group.members.resize((bytes.size() - sizeof(uint32_t)) / sizeof(int));
  std::memcpy(group.members.data(), bytes.data() + sizeof(uint32_t),
              group.members.size() * sizeof(int));
  return group;
}

}  // namespace tutti
