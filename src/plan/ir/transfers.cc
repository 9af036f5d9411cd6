// What is worked out from a transfer; the rest of it is plain data.
#include "plan/ir/transfers.h"

#include <algorithm>

#include "base/error.h"

namespace tutti {

size_t member_of(const SumTransfer& transfer, int rank) {
  const auto found = std::find(transfer.ranks.begin(), transfer.ranks.end(), rank);
  TUTTI_CHECK(found != transfer.ranks.end(), "rank {} takes no part in a sum", rank);
  return static_cast<size_t>(found - transfer.ranks.begin());
}

int64_t level_floats(const SumTransfer& transfer, const UnitSum& unit, int member) {
  // Further sources are added after the last round, so their sums are kept until then. With one
  // round they are added at once and need no memory.
  const Range slice = unit.slices[static_cast<size_t>(member)];
  int64_t floats = slice.size();
  for (size_t s = 1; transfer.rounds > 1 && s < unit.sources.size(); ++s)
    floats += overlap(slice, unit.sources[s].to).size();
  return floats;
}

}  // namespace tutti
