// Chooses the algorithm of a sum: the fixed tree, or the ring where the job asks for no order.
#include "comm/pulls.h"

#include "comm/ring_pull.h"
#include "comm/tree_lists.h"
#include "comm/tree_pull.h"

namespace tutti {

std::unique_ptr<SumPull> make_sum_pull(const SumTransfer& transfer, TransferName name,
                                       Transport& transport, std::span<std::byte> arena,
                                       std::vector<std::vector<float*>> levels,
                                       std::span<std::byte> scratch) {
  if (!transfer.ordered)
    return make_ring_pull(transfer, std::move(name), transport, arena, scratch);
  return make_tree_pull(transfer, std::move(name), transport, arena, std::move(levels), scratch);
}

int64_t SumPull::scratch_bytes(const SumTransfer& transfer, int rank, bool windows) {
  return transfer.ordered ? tree_scratch_bytes(transfer, rank, windows)
                          : ring_scratch_bytes(transfer);
}

// A buffer without a range holds the whole unit, so the slice begins inside it; one with a range
// holds the slice alone.
std::vector<float*> levels_of(const Plan& plan, const Instruction& reduce, const UnitSum& unit,
                              int rank, const std::function<float*(int)>& floats) {
  const Program& program = plan.programs[rank];
  const Range slice = unit.slices[member_of(plan.sums[reduce.transfer], rank)];
  std::vector<float*> levels;
  for (const Operand* sum : operands_of(reduce, OperandRole::kSum, unit.unit)) {
    const bool whole = program.buffers[sum->buffer].range.empty();
    levels.push_back(floats(sum->buffer) + (whole ? slice.begin : 0));
  }
  return levels;
}

}  // namespace tutti
