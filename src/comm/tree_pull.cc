// A Reduce over the tree: contributions arrive, or are read in their owners' windows, block by
// block; a finished block returns while later ones still arrive.
#include "comm/tree_pull.h"

#include <algorithm>
#include <cstring>

#include "comm/fold.h"
#include "comm/posted.h"
#include "comm/tree_lists.h"

namespace tutti {

namespace {

class TreePull final : public SumPull {
 public:
  TreePull(const SumTransfer& transfer, TransferName name, Transport& transport, TreeLists lists)
      : transfer_(transfer),
        name_(std::move(name)),
        transport_(transport),
        lists_(std::move(lists)) {}

  void run(uint64_t step, const Patience& patience, const std::function<void()>& begun) override {
    named(name_.text, step, [&] { run_named(step, patience, begun); });
  }

 private:
  void run_named(uint64_t step, const Patience& patience, const std::function<void()>& begun) {
    // Flags only rise, so `turn` counts the rounds of all steps: a flag that an earlier round has
    // raised wakes nobody in this one.
    const TreeLists& l = lists_;
    const uint64_t turn = step * transfer_.rounds + transfer_.round + 1;
    const auto raise = [&](ParcelFlag flag) {
      transport_.raise(flag_of(name_.parcel, flag), turn);
    };
    const auto await = [&](const std::vector<int>& peers, ParcelFlag flag) {
      for (int peer : peers)
        transport_.await(peer, flag_of(name_.parcel, flag), turn, patience, name_.text);
    };
    const auto tag = [&](const BlockMessage& m) { return Tag{name_.id, m.part, step}; };

    // Receives are posted before anything is sent, so that what arrives goes straight to its place.
    // Those who read this rank's window may begin at once; the others get its terms as messages.
    Posted arriving(transport_), leaving(transport_), back(transport_);
    for (const BlockMessage& m : l.receives) arriving.recv(m.peer, tag(m), m.bytes);
    if (!l.takers.empty()) raise(kSumReady);
    for (const BlockMessage& m : l.sends) leaving.send(m.peer, tag(m), m.bytes);
    if (begun) begun();

    // A sum that overwrites what this rank sends waits until that has left, and what it reads in
    // windows must be there.
    if (l.sends_first) leaving.wait_all(patience);
    await(l.givers, kSumReady);

    // Block by block: its terms have arrived, it is folded, and it returns to the others while
    // later blocks still travel. The receive for another owner's finished block is posted only when
    // this rank's own term, whose memory it takes, has left.
    size_t next = 0, returning = 0, returned = 0;
    for (size_t b = 0; b < std::max(l.folds_until.size(), l.returning_until.size()); ++b) {
      if (b < l.receives_until.size()) arriving.wait_first(l.receives_until[b], patience);
      if (b < l.returning_until.size()) {
        leaving.wait_first(l.sends_until[b], patience);
        for (; returning < l.returning_until[b]; ++returning)
          back.recv(l.returning[returning].peer, tag(l.returning[returning]),
                    l.returning[returning].bytes);
      }
      for (; b < l.folds_until.size() && next < l.folds_until[b]; ++next) {
        const FoldCall& call = l.folds[next];
        fold(call.out, call.terms, call.order, call.size);
      }
      for (; b < l.returned_until.size() && returned < l.returned_until[b]; ++returned)
        back.send(l.returned[returned].peer, tag(l.returned[returned]), l.returned[returned].bytes);
    }

    // Others may overwrite what this rank has read. A sum that takes the place of what others read
    // here is written last, when they have all read it.
    if (!l.givers.empty()) raise(kSumTaken);
    await(l.takers, kSumTaken);
    for (const SumAside& sum : l.aside)
      std::memcpy(sum.to, sum.from, static_cast<size_t>(sum.floats) * sizeof(float));
    leaving.wait_all(patience);
    back.wait_all(patience);
  }

  const SumTransfer& transfer_;
  const TransferName name_;
  Transport& transport_;
  const TreeLists lists_;
};

}  // namespace

std::unique_ptr<SumPull> make_tree_pull(const SumTransfer& transfer, TransferName name,
                                        Transport& transport, std::span<std::byte> arena,
                                        std::vector<std::vector<float*>> levels,
                                        std::span<std::byte> scratch) {
  TreeLists lists = make_tree_lists(transfer, name, transport, arena, std::move(levels), scratch);
  return std::make_unique<TreePull>(transfer, std::move(name), transport, std::move(lists));
}

}  // namespace tutti
