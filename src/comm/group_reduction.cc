// The exact reduction over groups of ranks: inside a group memory is read, between groups messages travel.
//
//   G groups of L ranks; rank (g, j) is the j-th of group g; its partners are (g', j)
//   1. (g, j) asks its partners for its slice of their groups' subtrees
//   2. when the group is ready, it folds for every partner the partner's slice of each of the group's subtrees and
//   sends it
//      (a subtree that is one rank's partial is sent from where it lies)
//   3. it folds its own slice: the group's partials and the partners' subtrees are leaves of one tree
//   4. gather: partners exchange finished slices; the group reads them from each other's windows
//
// G = 1 is the zero-copy reduction of one host, L = 1 the one by messages. All addresses are worked out once, at the
// start.
#include "comm/group_reduction.h"

#include <algorithm>

#include "base/error.h"
#include "comm/groups.h"
#include "comm/posted.h"
#include "comm/slice_work.h"
#include "comm/tree.h"

namespace tutti {
namespace {

struct FoldCall {
  float* out;
  std::vector<const float*> terms;
  const std::vector<FoldStep>* order;
  int64_t size;
  void run() const { fold(out, terms, *order, size); }
};

// A leaf of a fold and where its floats lie: float i of the partial is at `base[i]`, or, when it came by message, at
// `base[block.packed_of(i)]`.
struct Leaf {
  Range lanes;
  const float* base;
  bool packed;
};

struct Message {
  int peer;
  uint32_t part;
  float* in;         // receives
  const float* out;  // sends
  int64_t size;
};

class GroupReduction final : public Reduction {
 public:
  GroupReduction(const ReductionSpec& spec, Transport& transport, std::span<std::byte> arena)
      : spec_(spec),
        transport_(transport),
        arena_(arena),
        groups_(groups_of(spec, !transport.window().empty())),
        slices_(fold_slices(spec)),
        me_(transport.rank()),
        name_(fmt::format("reduce bucket {}", spec.bucket)) {
    check_spec();
    const Group& mine = groups_.all[groups_.of[me_]];
    for (int rank : mine.ranks) {
      if (rank != me_) peers_.push_back(rank);
      const std::vector<Range> trees = subtrees(spec_.owned[rank], spec_.lanes);
      for (size_t p = 0; p < trees.size(); ++p) leaves_.push_back({trees[p], partial(rank, p), false});
    }
    own_ = slice_work(spec_, slices_[me_], block_floats());
    // Everybody begins with another partner, so that no rank is everyone's first.
    for (int g = 1; g < groups_.size(); ++g) {
      partners_.push_back(groups_.all[(groups_.of[me_] + g) % groups_.size()].ranks[groups_.place[me_]]);
    }
    for (int p : partners_) {
      partner_blocks_.emplace_back();
      for (const SliceBlock& block : slice_work(spec_, slices_[p], block_floats()).blocks) {
        partner_blocks_.back().push_back(block.runs[0]);
      }
    }
    prepare_sends(mine);
    prepare_own_slice();
  }

  void reduce(uint64_t step, Deadline deadline) override {
    named(name_, step, [&] {
      Posted receives(transport_), sends(transport_);
      const Tag tag{operation(), 0, step};
      for (const Message& m : receives_) receives.recv(m.peer, with_part(tag, m.part), bytes(m.in, m.size));
      if (groups_.size() > 1) exchange_ = std::make_unique<Posted>(transport_);
      meet(kReadyFlag, step, deadline);
      size_t made = 0;
      for (size_t m = 0; m < sends_.size(); ++m) {
        for (; made < send_folds_until_[m]; ++made) send_folds_[made].run();
        sends.send(sends_[m].peer, with_part(tag, sends_[m].part), bytes(sends_[m].out, sends_[m].size));
      }
      size_t call = 0;
      for (size_t b = 0; b < std::max(own_.blocks.size(), sends_until_.size()); ++b) {
        if (b < own_.blocks.size()) receives.wait_first(receives_until_[b], deadline);
        if (b < sends_until_.size()) {
          sends.wait_first(sends_until_[b], deadline);
          await_block(b, step);
        }
        if (b >= own_.blocks.size()) continue;
        for (; call < folds_until_[b]; ++call) own_folds_[call].run();
        for (int p : partners_) send_block(p, b, step);
      }
      if (groups_.size() == 1 && !peers_.empty()) raise(kReducedFlag, step);
      if (spec_.fold == FoldAt::kRoot) end_exchange(step, deadline);
    });
  }

  void gather(uint64_t step, Deadline deadline) override {
    if (spec_.fold == FoldAt::kRoot) return;  // reduce() could not end without it
    named(name_, step, [&] { end_exchange(step, deadline); });
  }

  void release(uint64_t step) override {
    if (!peers_.empty()) raise(kReleasedFlag, step);
  }

  void await_release(uint64_t step, Deadline deadline) override {
    named(name_, step, [&] { await_peers(kReleasedFlag, step, deadline); });
  }

  const float* view(int slice) const override {
    const int owner = spec_.fold == FoldAt::kRoot ? 0 : slice;
    const int holder = groups_.all[groups_.of[me_]].ranks[groups_.place[owner]];
    return partial(holder, 0) + spec_.slices[slice].begin;
  }

  int64_t scratch_bytes() const override { return scratch_floats_ * static_cast<int64_t>(sizeof(float)); }

 private:
  uint32_t operation() const { return kReductionTags + 2 * static_cast<uint32_t>(spec_.bucket); }
  int64_t block_floats() const {
    if (groups_.size() == 1) return std::max<int64_t>(1, spec_.result_size);
    int64_t largest = 0;
    for (const Range& slice : slices_) largest = std::max(largest, slice.size());
    return std::max(kBlockFloats, align_up((largest + 3) / 4, kAlign));
  }
  static Tag with_part(Tag tag, uint32_t part) {
    tag.part = part;
    return tag;
  }
  static std::span<std::byte> bytes(float* at, int64_t n) { return std::as_writable_bytes(std::span(at, n)); }
  static std::span<const std::byte> bytes(const float* at, int64_t n) { return std::as_bytes(std::span(at, n)); }

  const float* partial(int rank, size_t index) const {
    const std::byte* base = rank == me_ ? arena_.data() : transport_.window_of(rank).data();
    return reinterpret_cast<const float*>(base + spec_.offsets[rank][index]);
  }
  float* result() { return reinterpret_cast<float*>(arena_.data() + spec_.offsets[me_][0]); }

  float* scratch(int64_t floats) {
    scratch_.push_back(std::make_unique_for_overwrite<float[]>(floats));
    scratch_floats_ += floats;
    return scratch_.back().get();
  }

  void check_spec() const {
    const size_t ranks = spec_.owned.size();
    TUTTI_CHECK(
        static_cast<int>(ranks) == transport_.size() && spec_.offsets.size() == ranks && spec_.slices.size() == ranks,
        "{}: a spec for {} ranks on a transport of {}", name_, ranks, transport_.size());
    TUTTI_CHECK(3 * spec_.bucket + 2 < Transport::kFlags - 64, "{}: no flags left for it", name_);
    for (const Piece& piece : spec_.pieces) {
      TUTTI_CHECK(!piece.src.empty() && piece.src[0] == piece.dst, "{}: a piece without its own gradient", name_);
      for (size_t s = 1; s < piece.src.size(); ++s) {
        TUTTI_CHECK(piece.src[s] >= spec_.result_size, "{}: a further gradient inside the result", name_);
      }
    }
    for (int rank : groups_.all[groups_.of[me_]].ranks) {
      const size_t size = rank == me_ ? arena_.size() : transport_.window_of(rank).size();
      for (int64_t offset : spec_.offsets[rank]) {
        TUTTI_CHECK(offset + spec_.partial_size * sizeof(float) <= size,
                    "{}: a partial of rank {} ends outside its window", name_, rank);
      }
    }
    TUTTI_CHECK(groups_.per_group() == 1 || arena_.data() == transport_.window().data(),
                "{}: the arena is not the window that the others read", name_);
  }

  // Step 2: for every partner, block and subtree of my group, the floats to send and the folds that make them.
  void prepare_sends(const Group& mine) {
    std::vector<std::vector<Leaf>> parts(mine.subtrees.size());
    for (size_t k = 0; k < mine.subtrees.size(); ++k) {
      std::vector<Range> ranges;
      for (const Leaf& leaf : leaves_) {
        if (!mine.subtrees[k].contains(leaf.lanes.begin)) continue;
        parts[k].push_back(leaf);
        ranges.push_back(leaf.lanes);
      }
      send_orders_.push_back(fold_order(ranges, mine.subtrees[k]));
    }
    // Block by block over all partners: whoever finishes a block first sends it back first.
    std::vector<SliceWork> works;
    std::vector<std::vector<float*>> buffers;  // [partner][subtree] of my group; null: one partial, sent as it lies
    size_t blocks = 0;
    for (int partner : partners_) {
      works.push_back(slice_work(spec_, slices_[partner], block_floats()));
      blocks = std::max(blocks, works.back().blocks.size());
      buffers.emplace_back();
      for (const auto& p : parts) buffers.back().push_back(p.size() > 1 ? scratch(works.back().packed_size) : nullptr);
    }
    std::vector<uint32_t> number(partners_.size(), 0);
    for (size_t b = 0; b < blocks; ++b) {
      for (size_t p = 0; p < partners_.size(); ++p) {
        if (b >= works[p].blocks.size()) continue;
        for (size_t k = 0; k < parts.size(); ++k)
          prepare_send(works[p].blocks[b], p, parts[k], k, buffers[p][k], number[p]);
      }
      sends_until_.push_back(sends_.size());
    }
  }

  void prepare_send(const SliceBlock& block, size_t p, const std::vector<Leaf>& part, size_t k, float* buffer,
                    uint32_t& number) {
    for (size_t r = 0; r < block.runs.size(); ++r) {
      const Range run = block.runs[r];
      const float* from = part[0].base + run.begin;
      if (buffer != nullptr) {
        FoldCall call{buffer + block.packed[r], {}, &send_orders_[k], run.size()};
        for (const Leaf& leaf : part) call.terms.push_back(leaf.base + run.begin);
        from = call.out;
        send_folds_.push_back(std::move(call));
      }
      sends_.push_back({partners_[p], number++, nullptr, from, run.size()});
      send_folds_until_.push_back(send_folds_.size());
    }
  }

  // Steps 1 and 3: where the partners' subtrees of my slice arrive, and the folds that finish it.
  void prepare_own_slice() {
    std::vector<Leaf> leaves = leaves_;
    for (int partner : partners_) {
      for (const Range& tree : groups_.all[groups_.of[partner]].subtrees) {
        leaves.push_back({tree, scratch(own_.packed_size), true});
      }
    }
    prepare_receives(std::span(leaves).subspan(leaves_.size()));
    std::sort(leaves.begin(), leaves.end(), [](const Leaf& a, const Leaf& b) { return a.lanes.begin < b.lanes.begin; });
    std::vector<Range> ranges;
    for (const Leaf& leaf : leaves) ranges.push_back(leaf.lanes);
    size_t most = 1;
    for (const Piece& piece : spec_.pieces) most = std::max(most, piece.src.size());
    const std::vector<FoldStep> order = fold_order(ranges, {0, spec_.lanes});
    for (size_t count = 1; count <= most; ++count) {
      own_orders_.push_back(fold_order_of_groups(order, static_cast<int>(leaves.size()), static_cast<int>(count)));
    }
    for (const SliceBlock& block : own_.blocks) {
      for (const SumJob& job : block.jobs) {
        FoldCall call{result() + job.dst, {}, &own_orders_[job.src.size() - 1], job.size};
        for (int64_t src : job.src) {
          for (const Leaf& leaf : leaves) call.terms.push_back(leaf.base + (leaf.packed ? block.packed_of(src) : src));
        }
        own_folds_.push_back(std::move(call));
      }
      folds_until_.push_back(own_folds_.size());
    }
  }

  void prepare_receives(std::span<const Leaf> arriving) {
    std::vector<uint32_t> number(partners_.size(), 0);
    for (const SliceBlock& block : own_.blocks) {
      size_t leaf = 0;
      for (size_t p = 0; p < partners_.size(); ++p) {
        for (size_t k = 0; k < groups_.all[groups_.of[partners_[p]]].subtrees.size(); ++k, ++leaf) {
          for (size_t r = 0; r < block.runs.size(); ++r) {
            float* in = const_cast<float*>(arriving[leaf].base) + block.packed[r];
            receives_.push_back({partners_[p], number[p]++, in, nullptr, block.runs[r].size()});
          }
        }
      }
      receives_until_.push_back(receives_.size());
    }
  }

  void raise(BucketFlag flag, uint64_t step) { transport_.raise(3 * spec_.bucket + flag, step + 1); }
  void await_peers(BucketFlag flag, uint64_t step, Deadline deadline) {
    for (int peer : peers_) transport_.await(peer, 3 * spec_.bucket + flag, step + 1, deadline, name_);
  }
  void meet(BucketFlag flag, uint64_t step, Deadline deadline) {
    if (peers_.empty()) return;
    raise(flag, step);
    await_peers(flag, step, deadline);
  }

  // Step 4. Every block of mine leaves as soon as it is finished. A finished block of another group's slice lands in my
  // first partial, where my own part of it lay: so its receive is posted once that part has left. Of the group, only I
  // read that range before.
  void await_block(size_t b, uint64_t step) {
    for (size_t p = 0; p < partners_.size(); ++p) {
      if (b >= partner_blocks_[p].size()) continue;
      const Range& range = partner_blocks_[p][b];
      exchange_->recv(partners_[p], Tag{operation() + 1, static_cast<uint32_t>(b), step},
                      bytes(result() + range.begin, range.size()));
    }
  }

  void send_block(int partner, size_t b, uint64_t step) {
    const Range& range = own_.blocks[b].runs[0];
    exchange_->send(partner, Tag{operation() + 1, static_cast<uint32_t>(b), step},
                    bytes(const_cast<const float*>(result()) + range.begin, range.size()));
  }

  void end_exchange(uint64_t step, Deadline deadline) {
    if (groups_.size() == 1) return await_peers(kReducedFlag, step, deadline);
    exchange_->wait_all(deadline);
    exchange_.reset();
    meet(kReducedFlag, step, deadline);
  }

  ReductionSpec spec_;
  Transport& transport_;
  std::span<std::byte> arena_;
  Groups groups_;
  std::vector<Range> slices_;
  int me_;
  std::string name_;
  std::vector<int> peers_;                          // the other ranks of my group
  std::vector<int> partners_;                       // the ranks of other groups that I exchange messages with
  std::vector<Leaf> leaves_;                        // the partials of my group
  std::vector<std::vector<Range>> partner_blocks_;  // what each finishes together
  std::unique_ptr<Posted> exchange_;                // finished blocks under way, from reduce to gather
  SliceWork own_;
  std::vector<std::unique_ptr<float[]>> scratch_;
  int64_t scratch_floats_ = 0;

  std::vector<Message> sends_;
  std::vector<size_t> sends_until_;       // by block of the partners' slices
  std::vector<size_t> send_folds_until_;  // by send
  std::vector<FoldCall> send_folds_;
  std::vector<std::vector<FoldStep>> send_orders_;

  std::vector<Message> receives_;
  std::vector<size_t> receives_until_, folds_until_;  // by block of my slice
  std::vector<FoldCall> own_folds_;
  std::vector<std::vector<FoldStep>> own_orders_;  // by number of sources
};

}  // namespace

std::unique_ptr<Reduction> make_group_reduction(const ReductionSpec& spec, Transport& transport,
                                                std::span<std::byte> arena) {
  return std::make_unique<GroupReduction>(spec, transport, arena);
}

}  // namespace tutti
