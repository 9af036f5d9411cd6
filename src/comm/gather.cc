// all_gather() wants equal sizes, so the sizes travel first, and then everybody's bytes, filled up
// to the largest. What is gathered this way is small.
#include "comm/gather.h"

#include <algorithm>

namespace tutti {

std::vector<std::string> gather_bytes(const std::string& mine, Channel& channel) {
  std::vector<uint64_t> sizes(static_cast<size_t>(channel.size()));
  const uint64_t size = mine.size();
  channel.all_gather(std::as_bytes(std::span(&size, 1)), std::as_writable_bytes(std::span(sizes)));

  const uint64_t widest = *std::max_element(sizes.begin(), sizes.end());
  std::string padded = mine, all(widest * sizes.size(), '\0');
  padded.resize(widest);
  channel.all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));

  // The filling is cut off again.
  std::vector<std::string> parts;
  for (size_t r = 0; r < sizes.size(); ++r) parts.push_back(all.substr(r * widest, sizes[r]));
  return parts;
}

}  // namespace tutti
