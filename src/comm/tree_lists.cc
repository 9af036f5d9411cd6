// Goes through the plan's transfer once, as owner and as contributor, and writes down what a pull
// does at every step. Whatever could be wrong with a transfer is checked here and not while data
// moves.
#include "comm/tree_lists.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "comm/tree_blocks.h"

namespace tutti {

namespace {

constexpr int64_t kFloat = sizeof(float);
/// Parts of the messages that return blocks are numbered from here, apart from those that bring
/// contributions.
constexpr uint32_t kReturnedParts = 1U << 30;

bool meet(const float* a, int64_t a_floats, const float* b, int64_t b_floats) {
  return a < b + b_floats && b < a + a_floats;
}

std::span<std::byte> bytes(float* at, int64_t floats) {
  return std::as_writable_bytes(std::span(at, floats));
}

void sort_by_block(std::vector<BlockMessage>& messages) {
  std::stable_sort(messages.begin(), messages.end(),
                   [](const auto& a, const auto& b) { return a.block < b.block; });
}
/// How many of them come up to the end of a block.
size_t until(const std::vector<BlockMessage>& messages, size_t block) {
  const auto later = std::find_if(messages.begin(), messages.end(),
                                  [block](const BlockMessage& m) { return m.block > block; });
  return static_cast<size_t>(later - messages.begin());
}

/// What I make of one unit.
struct Own {
  Range slice;
  std::vector<float*> levels;
  std::vector<Range> parts{};        // by source
  std::vector<int64_t> positions{};  // by source: where its part begins in a level
  // by source and term: where the part's first float is
  std::vector<std::vector<const float*>> bases{};
  // the sum waits here until others have read what it overwrites
  float* aside = nullptr;
  int64_t level_size = 0;

  /// Whether my stack covers these floats.
  bool overwrites(const float* at, int64_t floats) const {
    return level_size > 0 && std::any_of(levels.begin(), levels.end(), [&](const float* level) {
             return meet(level, level_size, at, floats);
           });
  }
  float* at_level(int level, size_t source, int64_t at) const {
    return levels.at(level) + positions[source] + (at - parts[source].begin);
  }
  /// Where float `at` of my slice is made, where nothing is kept from round to round.
  float* in_place(int64_t at, int level = 0) const { return levels.at(level) + (at - slice.begin); }
};

class Maker {
 public:
  Maker(const SumTransfer& transfer, const TransferName& name, Transport& transport,
        std::span<std::byte> arena, std::vector<std::vector<float*>> levels,
        std::span<std::byte> scratch)
      : transfer_(transfer),
        name_(name),
        transport_(transport),
        arena_(arena),
        scratch_(scratch),
        me_(transport.rank()),
        member_(member_of(transfer, me_)) {
    TUTTI_CHECK(name_.parcel >= 0 && name_.parcel < kFlaggedParcels, "{}: no flags left for it",
                name_.text);
    TUTTI_CHECK(levels.size() == transfer.units.size(), "{}: stacks for {} units of {}", name_.text,
                levels.size(), transfer.units.size());

    // Of every unit this rank owns a slice, which may be empty, and sums it in a stack of levels.
    for (size_t u = 0; u < transfer.units.size(); ++u) {
      Own own{transfer.units[u].slices[member_], std::move(levels[u])};
      own.level_size = own.slice.empty() ? 0 : level_floats(transfer, transfer.units[u], member_);
      TUTTI_CHECK(own.slice.empty() || static_cast<int>(own.levels.size()) == transfer.levels,
                  "{}: {} levels for a stack of {}", name_.text, own.levels.size(),
                  transfer.levels);
      units_.push_back(std::move(own));
    }

    // The order matters: what is given says which sums wait aside, what is taken finds the bases,
    // and folds and returns name both.
    prepare_giving();
    for (size_t u = 0; u < units_.size(); ++u) prepare_taking(u);
    prepare_receives();
    prepare_folds();
    if (transfer.returned == Return::kBlocks) prepare_returns();
    for (const Own& own : units_)
      if (own.aside != nullptr)
        lists_.aside.push_back({own.levels[0], own.aside, own.slice.size()});
  }

  TreeLists take() { return std::move(lists_); }

 private:
  std::span<const std::byte> memory_of(int rank) const {
    return rank == me_ ? arena_ : transport_.window_of(rank);
  }

  float* take_scratch(int64_t floats) {
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
    std::vector<bool> aside(units_.size());
    for (size_t m = 0; m < transfer_.ranks.size(); ++m) {
      // Everybody begins with another owner, so that no rank is everyone's first.
      const size_t turn = (member_ + m) % transfer_.ranks.size();
      const int owner = transfer_.ranks[turn];
      if (owner == me_) continue;
      const std::vector<GivenTerm> all = given(transfer_, me_, turn);
      const bool reads = !transport_.window_of(owner).empty();
      if (reads && !all.empty()) lists_.takers.push_back(owner);
      for (size_t part = 0; part < all.size(); ++part) {
        const GivenTerm& g = all[part];
        auto* at = const_cast<float*>(float_at(g.unit, g.source, g.term, g.floats.begin, arena_));
        check_inside(arena_, at, g.floats.size());

        // What the sum will overwrite must have left before, as a message, or the sum must wait
        // aside until its reader has taken it.
        if (units_[g.unit].overwrites(at, g.floats.size())) {
          if (reads) aside[g.unit] = true;
          lists_.sends_first |= !reads;
        }
        if (!reads)
          lists_.sends.push_back(
              {owner, static_cast<uint32_t>(part), g.block, bytes(at, g.floats.size())});
      }
    }
    sort_by_block(lists_.sends);

    // Only a window can be read by others; and a sum waits aside only if it is the one sum there
    // is, since levels are needed in place by later rounds.
    TUTTI_CHECK(lists_.takers.empty() || arena_.data() == transport_.window().data(),
                "{}: the arena is not the window that the others read", name_.text);
    for (size_t u = 0; u < units_.size(); ++u) {
      if (!aside[u]) continue;
      TUTTI_CHECK(transfer_.in_place() && transfer_.levels == 1,
                  "{}: the stack covers what others read", name_.text);
      units_[u].aside = take_scratch(units_[u].slice.size());
    }
  }

  void prepare_taking(size_t unit) {
    Own& own = units_[unit];
    const auto& sources = transfer_.units[unit].sources;
    int64_t position = 0;
    for (const SumSource& source : sources) {
      own.parts.push_back(overlap(own.slice, source.to));
      own.positions.push_back(position);
      position += own.parts.back().size();
      own.bases.emplace_back(source.terms.size(), nullptr);
    }

    // A term is read where it was made: in my own memory, in a window, or in scratch, where it
    // arrives as a message.
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
        if (rank != me_ &&
            std::find(lists_.givers.begin(), lists_.givers.end(), rank) == lists_.givers.end())
          lists_.givers.push_back(rank);
      }
    }
  }

  void prepare_receives() {
    std::sort(lists_.givers.begin(), lists_.givers.end());
    std::rotate(lists_.givers.begin(),
                std::upper_bound(lists_.givers.begin(), lists_.givers.end(), me_),
                lists_.givers.end());
    for (int rank : transfer_.ranks) {
      if (rank == me_ || !memory_of(rank).empty()) continue;
      const std::vector<GivenTerm> all = given(transfer_, rank, member_);
      for (size_t part = 0; part < all.size(); ++part) {
        const GivenTerm& g = all[part];
        const Own& own = units_[g.unit];
        auto* at = const_cast<float*>(own.bases[g.source][g.term]) +
                   (g.floats.begin - own.parts[g.source].begin);
        lists_.receives.push_back(
            {rank, static_cast<uint32_t>(part), g.block, bytes(at, g.floats.size())});
      }
    }
    sort_by_block(lists_.receives);
  }

  void check_inside(std::span<const std::byte> memory, const float* at, int64_t floats) const {
    const auto* begin = reinterpret_cast<const std::byte*>(at);
    TUTTI_CHECK(begin >= memory.data() && begin + floats * kFloat <= memory.data() + memory.size(),
                "{}: a contribution ends outside its window", name_.text);
  }

  /// A sum may overwrite one of its terms, float by float; on anything else of mine it would
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
    for (const SumBlock& block : blocks_of(transfer_, member_)) {
      const size_t b = lists_.receives_until.size();
      lists_.receives_until.push_back(until(lists_.receives, b));
      std::set<int64_t> borders{block.floats.begin, block.floats.end};
      for (const Range& part : units_[block.unit].parts)
        for (int64_t border : {part.begin, part.end})
          if (!part.empty() && block.floats.contains(border)) borders.insert(border);
      for (auto it = borders.begin(); std::next(it) != borders.end(); ++it)
        prepare_piece(units_[block.unit], {*it, *std::next(it)});
      lists_.folds_until.push_back(lists_.folds.size());
    }
  }

  void prepare_piece(const Own& own, Range piece) {
    std::vector<size_t> adding;
    for (size_t s = 0; s < own.parts.size(); ++s)
      if (own.parts[s].contains(piece.begin)) adding.push_back(s);
    for (const LevelSum& sum : transfer_.sums) {
      if (transfer_.last() && sum.level == 0) {
        prepare_fold(own, sum, adding, piece);
      } else {
        TUTTI_CHECK(transfer_.rounds > 1, "{}: more than its sum in the only round", name_.text);
        for (size_t s : adding) prepare_fold(own, sum, {s}, piece);
      }
    }
  }

  /// The sources' sums, added from left to right, to the level's part of the first.
  void prepare_fold(const Own& own, const LevelSum& sum, const std::vector<size_t>& sources,
                    Range piece) {
    FoldCall call{nullptr, {}, {}, piece.size()};
    const size_t first = sources[0];
    call.out = own.aside != nullptr ? own.aside + (piece.begin - own.slice.begin)
                                    : own.at_level(sum.level, first, piece.begin);
    for (size_t s : sources)
      for (int term : sum.terms)
        call.terms.push_back(term < 0 ? own.at_level(-1 - term, s, piece.begin)
                                      : own.bases[s].at(term) + (piece.begin - own.parts[s].begin));
    std::vector<FoldStep> order;
    for (const auto& [left, right] : sum.order) order.push_back({left, right});
    call.order = fold_order_of_groups(order, static_cast<int>(sum.terms.size()),
                                      static_cast<int>(sources.size()));
    lists_.folds.push_back(std::move(call));
  }

  /// A finished block of another owner arrives where my own part of it was, in my first term: so
  /// its receive is posted once that has left.
  void prepare_returns() {
    TUTTI_CHECK(transfer_.in_place(), "{}: what is returned has no place", name_.text);
    const auto part = [](size_t b) { return kReturnedParts + static_cast<uint32_t>(b); };
    const std::vector<SumBlock> mine = blocks_of(transfer_, member_);
    size_t blocks = mine.size();

    // Every other member gets my blocks, and I get theirs; as with what is given, every member
    // begins with the one after itself.
    for (size_t m = 1; m < transfer_.ranks.size(); ++m) {
      const size_t turn = (member_ + m) % transfer_.ranks.size();
      const std::vector<SumBlock> theirs = blocks_of(transfer_, turn);
      for (size_t b = 0; b < theirs.size(); ++b)
        lists_.returning.push_back({transfer_.ranks[turn], part(b), b, in_first_term(theirs[b])});
      for (size_t b = 0; b < mine.size(); ++b) {
        const Own& own = units_[mine[b].unit];
        TUTTI_CHECK(own.aside == nullptr, "{}: two ranks return the same floats", name_.text);
        lists_.returned.push_back(
            {transfer_.ranks[turn], part(b), b,
             bytes(own.in_place(mine[b].floats.begin), mine[b].floats.size())});
      }
      blocks = std::max(blocks, theirs.size());
    }

    // Messages go in the order of the blocks, so that each list can be walked once, up to the end
    // of every block.
    sort_by_block(lists_.returning);
    sort_by_block(lists_.returned);
    for (size_t b = 0; b < blocks; ++b) {
      lists_.sends_until.push_back(until(lists_.sends, b));
      lists_.returning_until.push_back(until(lists_.returning, b));
      lists_.returned_until.push_back(until(lists_.returned, b));
    }
  }

  std::span<std::byte> in_first_term(const SumBlock& block) const {
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

  const SumTransfer& transfer_;
  const TransferName& name_;
  Transport& transport_;
  const std::span<std::byte> arena_;
  std::span<std::byte> scratch_;  // what is left of it
  const int me_;
  const size_t member_;
  std::vector<Own> units_;
  TreeLists lists_;
};

}  // namespace

TreeLists make_tree_lists(const SumTransfer& transfer, const TransferName& name,
                          Transport& transport, std::span<std::byte> arena,
                          std::vector<std::vector<float*>> levels, std::span<std::byte> scratch) {
  return Maker(transfer, name, transport, arena, std::move(levels), scratch).take();
}

int64_t tree_scratch_bytes(const SumTransfer& transfer, int rank, bool windows) {
  const size_t member = member_of(transfer, rank);
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
