// The sum is made in the memory of this rank's own terms: the first term of the first source ends
// up with the whole sum.
#include "comm/ring_pull.h"

#include <algorithm>

#include "base/error.h"
#include "comm/fold.h"
#include "comm/posted.h"
#include "comm/ring.h"

namespace tutti {
namespace {

int64_t largest_slice(const SumTransfer& transfer) {
  int64_t largest = 0;
  for (const UnitSum& unit : transfer.units)
    for (const Range& slice : unit.slices) largest = std::max(largest, slice.size());
  return largest;
}

class RingPull final : public SumPull {
 public:
  RingPull(const SumTransfer& transfer, TransferName name, Transport& transport,
           std::span<std::byte> arena, std::span<std::byte> scratch)
      : transfer_(transfer),
        name_(std::move(name)),
        transport_(transport),
        scratch_(reinterpret_cast<float*>(scratch.data()),
                 static_cast<size_t>(largest_slice(transfer))) {
    TUTTI_CHECK(static_cast<int>(transfer.ranks.size()) == transport.size() && transfer.rounds == 1,
                "{}: a ring is of all ranks and one round", name_.text);
    TUTTI_CHECK(static_cast<int64_t>(scratch.size()) >= ring_scratch_bytes(transfer),
                "{}: its scratch is too small", name_.text);

    // By unit and source, my own terms: the ring needs at least one of each from every rank.
    for (const UnitSum& unit : transfer.units) {
      Sums& sums = units_.emplace_back();
      for (const SumSource& source : unit.sources) {
        sums.emplace_back();
        for (const SumSource::Term& term : source.terms)
          if (term.rank == transport.rank())
            sums.back().emplace_back(reinterpret_cast<float*>(arena.data() + term.offset),
                                     static_cast<size_t>(source.to.size()));
        TUTTI_CHECK(!sums.back().empty(), "{}: rank {} has nothing to add to a ring", name_.text,
                    transport.rank());
      }
    }
  }

  void run(uint64_t step, const Patience& patience, const std::function<void()>& begun) override {
    // A ring has no point at which all that is given is under way: each hop gives what the one
    // before brought.
    if (begun) begun();
    named(name_.text, step, [&] {
      for (size_t u = 0; u < units_.size(); ++u) {
        const UnitSum& unit = transfer_.units[u];

        // This rank's terms are added into the first of each source, then the further sources into
        // the first source.
        for (const auto& terms : units_[u])
          for (size_t t = 1; t < terms.size(); ++t)
            add_into(terms[0].data(), terms[t].data(), static_cast<int64_t>(terms[0].size()));
        const std::span<float> whole = units_[u][0][0];
        for (size_t s = 1; s < units_[u].size(); ++s)
          add_into(whole.data() + unit.sources[s].to.begin, units_[u][s][0].data(),
                   unit.sources[s].to.size());

        // The hops of both halves have part numbers of their own.
        const auto number = static_cast<uint32_t>(u) * kHops;
        ring_reduce_scatter(transport_, {name_.id, number, step}, whole, unit.slices, scratch_,
                            patience);
        ring_all_gather(transport_, {name_.id, number + kHops / 2, step}, whole, unit.slices,
                        patience);
      }
    });
  }

 private:
  // part numbers per unit; each half of the ring has half of them
  static constexpr uint32_t kHops = 1U << 14;
  // by source: my terms
  using Sums = std::vector<std::vector<std::span<float>>>;

  const SumTransfer& transfer_;
  const TransferName name_;
  Transport& transport_;
  const std::span<float> scratch_;
  std::vector<Sums> units_;
};

}  // namespace

std::unique_ptr<SumPull> make_ring_pull(const SumTransfer& transfer, TransferName name,
                                        Transport& transport, std::span<std::byte> arena,
                                        std::span<std::byte> scratch) {
  return std::make_unique<RingPull>(transfer, std::move(name), transport, arena, scratch);
}

int64_t ring_scratch_bytes(const SumTransfer& transfer) {
  return align_up(largest_slice(transfer), kAlign) * static_cast<int64_t>(sizeof(float));
}

}  // namespace tutti
