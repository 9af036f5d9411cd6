// A Reduce over the fixed tree: a reduce-scatter whose additions do not depend on the ranks. All
// addresses, messages and additions are worked out once, at the start; run() walks lists.
//
//   unit     floats that are summed together; a transfer has one or more
//   source   a gradient that adds to a unit: its own, or a further user's of a shared parameter
//   term     one contribution to a source: the partial sum of one rank
//   slice    what one member makes of a unit's sum; a member that makes one is an owner
//   part     what I own of a source: floats of the unit, one run of memory in every term
//   block    a cut of an owner's slices: it is folded while the next one still travels
//   piece    floats of a block that the same sources add to: one call of fold()
//
// A giver's window is read in place; a term that cannot be read arrives in scratch memory. The sum
// is made in the owner's stack, which may be the slice's place in one of its own terms: those cache
// lines have just been read.
#include "comm/tree_pull.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "comm/fold.h"
#include "comm/posted.h"
#include "comm/tree.h"

namespace tutti {
namespace {

constexpr int64_t kFloat = sizeof(float);
/// A slice is cut into up to four blocks of at least this many floats: the first is folded and on
/// its way back while the next arrives; more blocks cost more messages than they hide.
constexpr int64_t kBlockFloats = 512 * 1024;
/// Messages that return blocks number their parts from here on, apart from
/// those that bring contributions.
constexpr uint32_t kReturnedParts = 1U << 30;

struct Block {
  size_t unit;
  Range floats;
};
/// The blocks of a member's slices, in the order in which it folds them.
std::vector<Block> blocks_of(const SumTransfer& transfer, size_t member) {
  std::vector<Block> blocks;
  for (size_t u = 0; u < transfer.units.size(); ++u) {
    const Range slice = transfer.units[u].slices[member];
    const int64_t size = std::max(kBlockFloats, align_up((slice.size() + 3) / 4, kAlign));
    for (int64_t at = slice.begin; at < slice.end; at += size)
      blocks.push_back({u, {at, std::min(at + size, slice.end)}});
  }
  return blocks;
}

/// One thing that a rank gives an owner: a message, where the owner cannot read it. given() lists
/// all of it, block by block; sender and owner walk the same list, so its places number the
/// messages for both.
struct Given {
  size_t block, unit, source, term;
  Range floats;
};
std::vector<Given> given(const SumTransfer& transfer, int from, size_t owner) {
  std::vector<Given> all;
  const std::vector<Block> blocks = blocks_of(transfer, owner);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const auto& sources = transfer.units[blocks[b].unit].sources;
    for (size_t s = 0; s < sources.size(); ++s) {
      const Range floats = overlap(blocks[b].floats, sources[s].to);
      for (size_t t = 0; t < sources[s].terms.size() && !floats.empty(); ++t)
        if (sources[s].terms[t].rank == from) all.push_back({b, blocks[b].unit, s, t, floats});
    }
  }
  return all;
}

bool meet(const float* a, int64_t a_floats, const float* b, int64_t b_floats) {
  return a < b + b_floats && b < a + a_floats;
}

std::span<std::byte> bytes(float* at, int64_t floats) {
  return std::as_writable_bytes(std::span(at, floats));
}

// A message that a run posts. Messages are sorted by block, so that "all up to this block" is a
// prefix of the list.
struct Message {
  int peer;
  uint32_t part;
  size_t block;
  std::span<std::byte> bytes;  // of a send: only read
};
void sort_by_block(std::vector<Message>& messages) {
  std::stable_sort(messages.begin(), messages.end(),
                   [](const auto& a, const auto& b) { return a.block < b.block; });
}
/// How many of the messages belong to a block or to one before it.
size_t until(const std::vector<Message>& messages, size_t block) {
  const auto later = std::find_if(messages.begin(), messages.end(),
                                  [block](const Message& m) { return m.block > block; });
  return static_cast<size_t>(later - messages.begin());
}

// The arguments of one call of fold().
struct FoldCall {
  float* out;
  std::vector<const float*> terms;
  std::vector<FoldStep> order;
  int64_t size;
};

/// What I make of one unit.
struct Own {
  Range slice;
  std::vector<float*> levels;        // where the sums of my stack are made
  std::vector<Range> parts{};        // by source: which floats of the unit I own of it
  std::vector<int64_t> positions{};  // by source: where its part begins in a level
  // by source and term: where the part's first float is
  std::vector<std::vector<const float*>> bases{};
  // Where the sum waits until others have read what it overwrites; null: it does not have to.
  float* staged = nullptr;
  int64_t level_size = 0;

  /// Whether my stack covers these floats, so that making the sum changes them.
  bool overwrites(const float* at, int64_t floats) const {
    return level_size > 0 && std::any_of(levels.begin(), levels.end(), [&](const float* level) {
             return meet(level, level_size, at, floats);
           });
  }
  float* at_level(int level, size_t source, int64_t at) const {
    return levels.at(level) + positions[source] + (at - parts[source].begin);
  }
  /// Where float `at` of my slice is made, if nothing is kept from round to round.
  float* in_place(int64_t at, int level = 0) const { return levels.at(level) + (at - slice.begin); }
};

class TreePull final : public SumPull {
 public:
  TreePull(const SumTransfer& transfer, TransferName name, Transport& transport,
           std::span<std::byte> arena, std::vector<std::vector<float*>> levels,
           std::span<std::byte> scratch)
      : transfer_(transfer),
        name_(std::move(name)),
        transport_(transport),
        arena_(arena),
        scratch_(scratch),
        me_(transport.rank()),
        member_(member_of(transfer, me_)) {
    TUTTI_CHECK(name_.parcel >= 0 && name_.parcel < kFlaggedParcels, "{}: no flags left for it",
                name_.text);
    TUTTI_CHECK(levels.size() == transfer.units.size(), "{}: stacks for {} units of {}", name_.text,
                levels.size(), transfer.units.size());

    // One stack per unit, empty where I own nothing of it.
    for (size_t u = 0; u < transfer.units.size(); ++u) {
      Own own{transfer.units[u].slices[member_], std::move(levels[u])};
      own.level_size = own.slice.empty() ? 0 : level_floats(transfer, transfer.units[u], member_);
      TUTTI_CHECK(own.slice.empty() || static_cast<int>(own.levels.size()) == transfer.levels,
                  "{}: {} levels for a stack of {}", name_.text, own.levels.size(),
                  transfer.levels);
      units_.push_back(std::move(own));
    }

    // In this order: giving decides what is staged, taking where every term is;
    // receives and folds go by that.
    prepare_giving();
    for (size_t u = 0; u < units_.size(); ++u) prepare_taking(u);
    prepare_receives();
    prepare_folds();
    if (transfer.returned == Return::kBlocks) prepare_returns();
  }

  void run(uint64_t step, Deadline deadline, const std::function<void()>& begun) override {
    named(name_.text, step, [&] { run_named(step, deadline, begun); });
  }

 private:
  std::span<const std::byte> memory_of(int rank) const {
    return rank == me_ ? arena_ : transport_.window_of(rank);
  }

  float* take_scratch(int64_t floats) {
    // Scratch is handed out once, while the lists are made.
    // tree_scratch_bytes() adds up the same sizes.
    const size_t size = align_up(floats, kAlign) * kFloat;
    TUTTI_CHECK(size <= scratch_.size(), "{}: its scratch is too small", name_.text);
    auto* at = reinterpret_cast<float*>(scratch_.data());
    scratch_ = scratch_.subspan(size);
    return at;
  }

  /// Where float `at` of a contribution is in the memory of the rank that makes it.
  const float* float_at(size_t unit, size_t source, size_t term, int64_t at,
                        std::span<const std::byte> memory) const {
    const SumSource& from = transfer_.units[unit].sources[source];
    return reinterpret_cast<const float*>(memory.data() + from.terms[term].offset) +
           (at - from.to.begin);
  }

  void prepare_giving() {
    // What each owner takes from me. It reads my window if it can; else I send it. Where my own sum
    // would overwrite what the owner still has to read, the sum is staged; where it would overwrite
    // what is sent, the sending comes first.
    std::vector<bool> stage(units_.size());
    for (size_t m = 0; m < transfer_.ranks.size(); ++m) {
      // Everybody begins with another owner, so that no rank is the first one for all.
      const size_t turn = (member_ + m) % transfer_.ranks.size();
      const int owner = transfer_.ranks[turn];
      if (owner == me_) continue;
      const std::vector<Given> all = given(transfer_, me_, turn);
      const bool reads = !transport_.window_of(owner).empty();
      if (reads && !all.empty()) takers_.push_back(owner);
      for (size_t part = 0; part < all.size(); ++part) {
        const Given& g = all[part];
        auto* at = const_cast<float*>(float_at(g.unit, g.source, g.term, g.floats.begin, arena_));
        check_inside(arena_, at, g.floats.size());
        if (units_[g.unit].overwrites(at, g.floats.size())) {
          if (reads) stage[g.unit] = true;
          sends_first_ |= !reads;
        }
        if (!reads)
          sends_.push_back(
              {owner, static_cast<uint32_t>(part), g.block, bytes(at, g.floats.size())});
      }
    }

    sort_by_block(sends_);
    TUTTI_CHECK(takers_.empty() || arena_.data() == transport_.window().data(),
                "{}: the arena is not the window that the others read", name_.text);

    // Only a sum that keeps nothing from round to round can be staged: it is copied to its place at
    // the end of the run.
    for (size_t u = 0; u < units_.size(); ++u) {
      if (!stage[u]) continue;
      TUTTI_CHECK(transfer_.in_place() && transfer_.levels == 1,
                  "{}: the stack covers what others read", name_.text);
      units_[u].staged = take_scratch(units_[u].slice.size());
    }
  }

  void prepare_taking(size_t unit) {
    Own& own = units_[unit];
    const auto& sources = transfer_.units[unit].sources;
    // In a level, the parts of all sources follow one another.
    int64_t position = 0;
    for (const SumSource& source : sources) {
      own.parts.push_back(overlap(own.slice, source.to));
      own.positions.push_back(position);
      position += own.parts.back().size();
      own.bases.emplace_back(source.terms.size(), nullptr);
    }

    // Where the first float of every term is: in a window that I can read, or in
    // scratch that its message fills.
    for (size_t s = 0; s < sources.size(); ++s) {
      for (size_t t = 0; t < own.bases[s].size() && !own.parts[s].empty(); ++t) {
        const int rank = sources[s].terms[t].rank;
        const std::span<const std::byte> memory = memory_of(rank);
        if (memory.empty()) {
          own.bases[s][t] = take_scratch(own.parts[s].size());
          continue;
        }
        own.bases[s][t] = float_at(unit, s, t, own.parts[s].begin, memory);
        check_inside(memory, own.bases[s][t], own.parts[s].size());
        if (rank == me_) check_own(own, s, t);
        if (rank != me_ && std::find(givers_.begin(), givers_.end(), rank) == givers_.end())
          givers_.push_back(rank);
      }
    }
  }

  void prepare_receives() {
    // Givers in ring order from the rank after me, so that not all wait for the same one first.
    std::sort(givers_.begin(), givers_.end());
    std::rotate(givers_.begin(), std::upper_bound(givers_.begin(), givers_.end(), me_),
                givers_.end());

    // One message for each entry of the list that its sender walks, too.
    for (int rank : transfer_.ranks) {
      if (rank == me_ || !memory_of(rank).empty()) continue;
      const std::vector<Given> all = given(transfer_, rank, member_);
      for (size_t part = 0; part < all.size(); ++part) {
        const Given& g = all[part];
        const Own& own = units_[g.unit];
        auto* at = const_cast<float*>(own.bases[g.source][g.term]) +
                   (g.floats.begin - own.parts[g.source].begin);
        receives_.push_back(
            {rank, static_cast<uint32_t>(part), g.block, bytes(at, g.floats.size())});
      }
    }
    sort_by_block(receives_);
  }

  void check_inside(std::span<const std::byte> memory, const float* at, int64_t floats) const {
    const auto* begin = reinterpret_cast<const std::byte*>(at);
    TUTTI_CHECK(begin >= memory.data() && begin + floats * kFloat <= memory.data() + memory.size(),
                "{}: a contribution ends outside its window", name_.text);
  }

  /// A sum may overwrite one of its own terms, float by float. On any other memory of mine it would
  /// overwrite what is still to be read.
  void check_own(const Own& own, size_t s, size_t term) const {
    const float* base = own.bases[s][term];
    if (!own.overwrites(base, own.parts[s].size())) return;
    const auto takes_its_place = [&](const LevelSum& sum) {
      return std::find(sum.terms.begin(), sum.terms.end(), static_cast<int>(term)) !=
                 sum.terms.end() &&
             base == own.in_place(own.parts[s].begin, sum.level);
    };
    TUTTI_CHECK(transfer_.in_place() &&
                    std::any_of(transfer_.sums.begin(), transfer_.sums.end(), takes_its_place),
                "{}: the stack covers a contribution", name_.text);
  }

  void prepare_folds() {
    // Blocks are cut into pieces where a source begins or ends, so all floats of a piece have the
    // same terms. For every block the lists note how far messages and folds go up to its end.
    for (const Block& block : blocks_of(transfer_, member_)) {
      const size_t b = receives_until_.size();
      receives_until_.push_back(until(receives_, b));
      std::set<int64_t> borders{block.floats.begin, block.floats.end};
      for (const Range& part : units_[block.unit].parts)
        for (int64_t border : {part.begin, part.end})
          if (!part.empty() && block.floats.contains(border)) borders.insert(border);
      for (auto it = borders.begin(); std::next(it) != borders.end(); ++it)
        prepare_piece(units_[block.unit], {*it, *std::next(it)});
      folds_until_.push_back(folds_.size());
    }
  }

  void prepare_piece(const Own& own, Range piece) {
    std::vector<size_t> adding;
    for (size_t s = 0; s < own.parts.size(); ++s)
      if (own.parts[s].contains(piece.begin)) adding.push_back(s);

    // After the last round level 0 is the step's sum, and the further sources are added to the
    // first. Until then every source keeps a stack of its own.
    for (const LevelSum& sum : transfer_.sums) {
      if (transfer_.last() && sum.level == 0) {
        prepare_fold(own, sum, adding, piece);
      } else {
        TUTTI_CHECK(transfer_.rounds > 1, "{}: more than its sum in the only round", name_.text);
        for (size_t s : adding) prepare_fold(own, sum, {s}, piece);
      }
    }
  }

  /// Adds the sums of the sources from left to right, and leaves them in the level's part of the
  /// first one. All of it is one order of additions, so fold() goes over the memory once.
  void prepare_fold(const Own& own, const LevelSum& sum, const std::vector<size_t>& sources,
                    Range piece) {
    FoldCall call{nullptr, {}, {}, piece.size()};
    const size_t first = sources[0];
    call.out = own.staged != nullptr ? own.staged + (piece.begin - own.slice.begin)
                                     : own.at_level(sum.level, first, piece.begin);

    // A negative term is a level of the stack, any other a contribution of this round.
    for (size_t s : sources)
      for (int term : sum.terms)
        call.terms.push_back(term < 0 ? own.at_level(-1 - term, s, piece.begin)
                                      : own.bases[s].at(term) + (piece.begin - own.parts[s].begin));

    // Every source is folded by the same additions.
    std::vector<FoldStep> order;
    for (const auto& [left, right] : sum.order) order.push_back({left, right});
    call.order = fold_order_of_groups(order, static_cast<int>(sum.terms.size()),
                                      static_cast<int>(sources.size()));
    folds_.push_back(std::move(call));
  }

  /// A finished block of another owner arrives where my own part of it was, in my first term, so
  /// its receive is posted once that part has left.
  void prepare_returns() {
    TUTTI_CHECK(transfer_.in_place(), "{}: what is returned has no place", name_.text);
    const auto part = [](size_t b) { return kReturnedParts + static_cast<uint32_t>(b); };

    // Again everybody begins with another rank. Blocks of all owners go in step: block b of each is
    // returned before block b + 1 is waited for.
    const std::vector<Block> mine = blocks_of(transfer_, member_);
    size_t blocks = mine.size();
    for (size_t m = 1; m < transfer_.ranks.size(); ++m) {
      const size_t turn = (member_ + m) % transfer_.ranks.size();
      const std::vector<Block> theirs = blocks_of(transfer_, turn);
      for (size_t b = 0; b < theirs.size(); ++b)
        returning_.push_back({transfer_.ranks[turn], part(b), b, in_first_term(theirs[b])});
      for (size_t b = 0; b < mine.size(); ++b) {
        const Own& own = units_[mine[b].unit];
        TUTTI_CHECK(own.staged == nullptr, "{}: two ranks return the same floats", name_.text);
        returned_.push_back({transfer_.ranks[turn], part(b), b,
                             bytes(own.in_place(mine[b].floats.begin), mine[b].floats.size())});
      }
      blocks = std::max(blocks, theirs.size());
    }

    // By block of any owner: how far each list goes up to the end of the block.
    sort_by_block(returning_);
    sort_by_block(returned_);
    for (size_t b = 0; b < blocks; ++b) {
      sends_until_.push_back(until(sends_, b));
      returning_until_.push_back(until(returning_, b));
      returned_until_.push_back(until(returned_, b));
    }
  }

  std::span<std::byte> in_first_term(const Block& block) const {
    const auto& terms = transfer_.units[block.unit].sources[0].terms;
    const auto first = std::find_if(terms.begin(), terms.end(),
                                    [this](const auto& term) { return term.rank == me_; });
    TUTTI_CHECK(first != terms.end(), "{}: what is returned to rank {} has no place there",
                name_.text, me_);
    auto* at = const_cast<float*>(float_at(
        block.unit, 0, static_cast<size_t>(first - terms.begin()), block.floats.begin, arena_));
    check_inside(arena_, at, block.floats.size());
    return bytes(at, block.floats.size());
  }

  void run_named(uint64_t step, Deadline deadline, const std::function<void()>& begun) {
    // Flags count the rounds of all steps, so a value is never raised twice.
    const uint64_t turn = step * transfer_.rounds + transfer_.round + 1;
    const auto raise = [&](ParcelFlag flag) {
      transport_.raise(flag_of(name_.parcel, flag), turn);
    };
    const auto await = [&](const std::vector<int>& peers, ParcelFlag flag) {
      for (int peer : peers)
        transport_.await(peer, flag_of(name_.parcel, flag), turn, deadline, name_.text);
    };
    const auto tag = [&](const Message& m) { return Tag{name_.id, m.part, step}; };

    // Receives are posted before anything is announced or sent, so that messages go
    // straight to their places. When `begun` is called, all that others need for their
    // folds is ready or under way.
    Posted arriving(transport_), leaving(transport_), back(transport_);
    for (const Message& m : receives_) arriving.recv(m.peer, tag(m), m.bytes);
    if (!takers_.empty()) raise(kSumReady);
    for (const Message& m : sends_) leaving.send(m.peer, tag(m), m.bytes);
    if (begun) begun();

    // Nothing may be folded before what the sum overwrites has left.
    if (sends_first_) leaving.wait_all(deadline);
    await(givers_, kSumReady);

    // Block by block: wait for its terms, fold it, and return it while the next one arrives. The
    // receive of a returned block is posted once my own part of it has left its place.
    size_t next = 0, returning = 0, returned = 0;
    for (size_t b = 0; b < std::max(folds_until_.size(), returning_until_.size()); ++b) {
      if (b < receives_until_.size()) arriving.wait_first(receives_until_[b], deadline);
      if (b < returning_until_.size()) {
        leaving.wait_first(sends_until_[b], deadline);
        for (; returning < returning_until_[b]; ++returning)
          back.recv(returning_[returning].peer, tag(returning_[returning]),
                    returning_[returning].bytes);
      }
      for (; b < folds_until_.size() && next < folds_until_[b]; ++next) {
        const FoldCall& call = folds_[next];
        fold(call.out, call.terms, call.order, call.size);
      }
      for (; b < returned_until_.size() && returned < returned_until_[b]; ++returned)
        back.send(returned_[returned].peer, tag(returned_[returned]), returned_[returned].bytes);
    }

    // The meeting ends when every owner that reads my window has taken its slices; then staged sums
    // may overwrite what was read.
    if (!givers_.empty()) raise(kSumTaken);
    await(takers_, kSumTaken);
    for (const Own& own : units_)
      if (own.staged != nullptr) std::memcpy(own.levels[0], own.staged, own.slice.size() * kFloat);
    leaving.wait_all(deadline);
    back.wait_all(deadline);
  }

  const SumTransfer& transfer_;
  const TransferName name_;
  Transport& transport_;
  const std::span<std::byte> arena_;
  std::span<std::byte> scratch_;  // what is left of it
  const int me_;
  const size_t member_;
  std::vector<Own> units_;

  std::vector<int> givers_, takers_;  // whose windows I read, who reads mine
  std::vector<Message> receives_, sends_;
  std::vector<size_t> receives_until_, folds_until_;  // by block of mine
  std::vector<FoldCall> folds_;
  // Whether the sum overwrites what I send.
  bool sends_first_ = false;
  // blocks that others return to me, and mine that I return to them
  std::vector<Message> returning_, returned_;
  std::vector<size_t> sends_until_, returning_until_, returned_until_;  // by block of any owner
};

}  // namespace

std::unique_ptr<SumPull> make_tree_pull(const SumTransfer& transfer, TransferName name,
                                        Transport& transport, std::span<std::byte> arena,
                                        std::vector<std::vector<float*>> levels,
                                        std::span<std::byte> scratch) {
  return std::make_unique<TreePull>(transfer, std::move(name), transport, arena, std::move(levels),
                                    scratch);
}

int64_t tree_scratch_bytes(const SumTransfer& transfer, int rank, bool windows) {
  const size_t member = member_of(transfer, rank);

  // What take_scratch() will be asked for: staged sums of slices that another member owns, too,
  // where windows are read; and every term of another rank, where they are not.
  int64_t floats = 0;
  for (const UnitSum& unit : transfer.units) {
    const Range slice = unit.slices[member];
    bool shared = false;
    for (size_t m = 0; windows && transfer.in_place() && m < transfer.ranks.size(); ++m)
      shared |= m != member && !overlap(slice, unit.slices[m]).empty();
    if (shared) floats += align_up(slice.size(), kAlign);
    for (const SumSource& source : unit.sources)
      for (const SumSource::Term& term : source.terms)
        if (!windows && term.rank != rank)
          floats += align_up(overlap(slice, source.to).size(), kAlign);
  }
  return floats * kFloat;
}

}  // namespace tutti
