// Chooses the algorithm of a reduction, and says how many bytes it sends.
#include "comm/reduction.h"

#include "comm/group_reduction.h"
#include "comm/groups.h"
#include "comm/slice_work.h"

namespace tutti {
namespace {

constexpr int64_t kFloat = sizeof(float);

// A rank sends all slices but its own, then all but its neighbour's.
int64_t ring_bytes(const ReductionSpec& spec, int from, int to) {
  const int ranks = static_cast<int>(spec.owned.size());
  if (ranks == 1 || to != (from + 1) % ranks) return 0;
  return (2 * spec.result_size - spec.slices[from].size() - spec.slices[to].size()) * kFloat;
}

}  // namespace

std::unique_ptr<Reduction> make_reduction(const ReductionSpec& spec, Transport& transport, std::span<std::byte> arena) {
  return spec.kind == ReduceKind::kRing ? make_ring_reduction(spec, transport, arena)
                                        : make_group_reduction(spec, transport, arena);
}

int64_t reduction_bytes(const ReductionSpec& spec, const std::string& transport, int from, int to) {
  if (spec.kind == ReduceKind::kRing) return ring_bytes(spec, from, to);
  const Groups groups = groups_of(spec, transport != "tcp");
  if (groups.of[from] == groups.of[to] || groups.place[from] != groups.place[to]) return 0;
  const std::vector<Range> slices = fold_slices(spec);
  const int64_t subtrees = static_cast<int64_t>(groups.all[groups.of[from]].subtrees.size());
  return (subtrees * slice_work(spec, slices[to], kBlockFloats).packed_size + slices[from].size()) * kFloat;
}

}  // namespace tutti
