// kind = ring: the classical algorithm, for comparison and for those who ask for it by name. Each rank first adds up
// its own partials from left to right (and the further gradients of shared parameters), then the ring runs over the
// result.
#include <algorithm>

#include "comm/fold.h"
#include "comm/group_reduction.h"
#include "comm/posted.h"
#include "comm/ring.h"

namespace tutti {
namespace {

class RingReduction final : public Reduction {
 public:
  RingReduction(const ReductionSpec& spec, Transport& transport, std::span<std::byte> arena)
      : spec_(spec), transport_(transport), name_(fmt::format("reduce bucket {}", spec.bucket)) {
    for (int64_t offset : spec_.offsets[transport.rank()]) {
      partials_.push_back(reinterpret_cast<float*>(arena.data() + offset));
    }
    int64_t largest = 0;
    for (const Range& slice : spec_.slices) largest = std::max(largest, slice.size());
    scratch_.resize(largest);
  }

  void reduce(uint64_t step, Deadline deadline) override {
    for (size_t p = 1; p < partials_.size(); ++p) add_into(partials_[0], partials_[p], spec_.partial_size);
    for (const Piece& piece : spec_.pieces) {
      for (size_t s = 1; s < piece.src.size(); ++s) {
        add_into(partials_[0] + piece.dst, partials_[0] + piece.src[s], piece.size);
      }
    }
    named(name_, step,
          [&] { ring_reduce_scatter(transport_, tag(0, step), result(), spec_.slices, scratch_, deadline); });
  }
  void gather(uint64_t step, Deadline deadline) override {
    named(name_, step, [&] { ring_all_gather(transport_, tag(1, step), result(), spec_.slices, deadline); });
  }
  // Nobody reads this rank's memory: messages carried everything.
  void release(uint64_t) override {}
  void await_release(uint64_t, Deadline) override {}
  const float* view(int slice) const override { return partials_[0] + spec_.slices[slice].begin; }
  int64_t scratch_bytes() const override { return static_cast<int64_t>(scratch_.size() * sizeof(float)); }

 private:
  std::span<float> result() { return {partials_[0], static_cast<size_t>(spec_.result_size)}; }
  Tag tag(uint32_t half, uint64_t step) const {
    return {kReductionTags + 2 * static_cast<uint32_t>(spec_.bucket) + half, 0, step};
  }

  ReductionSpec spec_;
  Transport& transport_;
  std::string name_;
  std::vector<float*> partials_;
  std::vector<float> scratch_;
};

}  // namespace

std::unique_ptr<Reduction> make_ring_reduction(const ReductionSpec& spec, Transport& transport,
                                               std::span<std::byte> arena) {
  return std::make_unique<RingReduction>(spec, transport, arena);
}

}  // namespace tutti
