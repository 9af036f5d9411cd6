#include "plan/ir/transfers.h"

namespace tutti {

int64_t level_floats(const SumTransfer& transfer, const UnitSum& unit, int member) {
  const Range slice = unit.slices[static_cast<size_t>(member)];
  int64_t floats = slice.size();
  for (size_t s = 1; transfer.rounds > 1 && s < unit.sources.size(); ++s)
    floats += overlap(slice, unit.sources[s].to).size();
  return floats;
}

}  // namespace tutti
