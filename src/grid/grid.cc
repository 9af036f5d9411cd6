// The tree over n leaves: its left part is the largest power of two below n, so full subtrees stay
// where they are when n grows. Every function here walks down from the root; a node is the range
// of its leaves.
#include "grid/grid.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace tutti {

namespace {

struct Halves {
  Range left, right;
};

/// The two children of a node.
Halves halves(Range node) {
  const int64_t middle = node.begin + tree_left(node.size());
  return {{node.begin, middle}, {middle, node.end}};
}

/// Goes down until a node is wholly owned, or not at all.
void collect_subtrees(Range node, Range owned, std::vector<Range>& out) {
  if (node.end <= owned.begin || owned.end <= node.begin) return;
  if (owned.begin <= node.begin && node.end <= owned.end) {
    out.push_back(node);
    return;
  }
  const auto [left, right] = halves(node);
  collect_subtrees(left, owned, out);
  collect_subtrees(right, owned, out);
}

/// Goes down until a node is one of the parts, and comes back adding.
void collect_sums(Range node, const std::vector<Range>& parts, std::vector<TreeSum>& out) {
  // Parts are in leaf order, so the one that begins here is found by bisection.
  const auto part =
      std::lower_bound(parts.begin(), parts.end(), node.begin,
                       [](const Range& range, int64_t begin) { return range.begin < begin; });
  if (part != parts.end() && *part == node) return;

  TUTTI_CHECK(node.size() > 1, "no part covers lane {}", node.begin);
  const auto [left, right] = halves(node);
  collect_sums(left, parts, out);
  collect_sums(right, parts, out);
  out.push_back({left, right});
}

}  // namespace

Batch batch_of(const TrainConfig& train) {
  return {static_cast<int>(train.lanes), static_cast<int>(train.micro_batches),
          static_cast<int>(train.micro_batch_size)};
}

int64_t first_sample(const Batch& batch, int64_t step, int lane, int micro) {
  return ((step * batch.lanes + lane) * batch.micro_batches + micro) * batch.micro_batch_size;
}

Range lanes_of(int rank, int ranks, int64_t lanes) {
  // The first `more` ranks have one lane more; so all ranks before this one have that many extra.
  const int64_t each = lanes / ranks, more = lanes % ranks;
  const int64_t begin = rank * each + std::min<int64_t>(rank, more);
  return {begin, begin + each + (rank < more ? 1 : 0)};
}

int64_t tree_left(int64_t n) {
  TUTTI_CHECK(n >= 2, "a tree over {} leaves has no left part", n);
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n - 1)));
}

std::vector<Range> subtrees(Range owned, int64_t lanes) {
  std::vector<Range> out;
  if (!owned.empty()) collect_subtrees({0, lanes}, owned, out);
  return out;
}

std::vector<TreeSum> tree_sums(const std::vector<Range>& parts, int64_t lanes) {
  std::vector<TreeSum> out;
  collect_sums({0, lanes}, parts, out);
  return out;
}

std::vector<TreeSum> sums_after_lane(int64_t lane, Range owned, int64_t lanes) {
  std::vector<TreeSum> out;
  for (Range node : subtrees(owned, lanes)) {
    if (!node.contains(lane)) continue;

    // Down from the subtree to the lane: the nodes that end with it are complete with it. They are
    // found from the outside in, but added from the inside out.
    while (node.size() > 1) {
      const auto [left, right] = halves(node);
      if (node.end == lane + 1) out.push_back({left, right});
      node = right.contains(lane) ? right : left;
    }
  }
  std::reverse(out.begin(), out.end());
  return out;
}

int fold_buffers(Range owned, int64_t lanes) {
  // Each lane takes a buffer, each addition frees one.
  int held = 0, most = 0;
  for (int64_t lane = owned.begin; lane < owned.end; ++lane) {
    most = std::max(most, ++held);
    held -= static_cast<int>(sums_after_lane(lane, owned, lanes).size());
  }
  return most;
}

std::vector<Range> chunks_of(const std::vector<Range>& parameters) {
  std::vector<Range> out;
  for (const Range& parameter : parameters) {
    for (int64_t begin = parameter.begin; begin < parameter.end; begin += kChunk) {
      out.push_back({begin, std::min(begin + kChunk, parameter.end)});
    }
  }
  return out;
}

std::vector<Range> slices_of(const std::vector<Range>& parameters, int64_t size, int parts) {
  // Where a cut may be: at the start of a chunk, so that a chunk's squares are summed by one rank.
  std::vector<int64_t> borders{0};
  for (const Range& chunk : chunks_of(parameters)) {
    if (chunk.begin > borders.back()) borders.push_back(chunk.begin);
  }
  if (size > borders.back()) borders.push_back(size);

  // The border that is nearest to an even cut, and the lower one of two. Even cuts ascend, so the
  // chosen borders do, too.
  const auto nearest = [&](int64_t ideal) {
    const auto above = std::lower_bound(borders.begin(), borders.end(), ideal);
    if (above == borders.begin()) return *above;
    if (above == borders.end()) return borders.back();
    return ideal - above[-1] <= *above - ideal ? above[-1] : *above;
  };

  // Even cuts at size * part / parts, written so that the product cannot overflow.
  std::vector<Range> out;
  int64_t begin = 0;
  for (int part = 1; part <= parts; ++part) {
    const int64_t end =
        part == parts ? size : nearest(size / parts * part + size % parts * part / parts);
    out.push_back({begin, end});
    begin = end;
  }
  return out;
}

int host_of(int rank, int ranks, int hosts) {
  int host = 0;
  while (!ranks_of_host(host, ranks, hosts).contains(rank)) ++host;
  return host;
}

Range ranks_of_host(int host, int ranks, int hosts) { return lanes_of(host, hosts, ranks); }

}  // namespace tutti
