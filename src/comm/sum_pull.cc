// All addresses, messages and additions of a pull are worked out once, at the start; run() walks lists.
//
//   part    what I own of a source: floats of the unit, one run of memory in every contribution
//   block   a cut of an owner's slice: it is folded while the next one still travels
//   piece   floats of a block that the same sources add to
#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "comm/fold.h"
#include "comm/group_reduction.h"
#include "comm/posted.h"
#include "comm/pulls.h"
#include "comm/tree.h"

namespace tutti {
namespace {

constexpr int64_t kFloat = sizeof(float);

int member_of(const SumTransfer& transfer, int rank) {
  const auto found = std::find(transfer.ranks.begin(), transfer.ranks.end(), rank);
  TUTTI_CHECK(found != transfer.ranks.end(), "{}: rank {} takes no part", transfer.name, rank);
  return static_cast<int>(found - transfer.ranks.begin());
}

std::vector<Range> blocks_of(Range slice) {
  const int64_t size = std::max(kBlockFloats, align_up((slice.size() + 3) / 4, kAlign));
  std::vector<Range> blocks;
  for (int64_t at = slice.begin; at < slice.end; at += size) blocks.push_back({at, std::min(at + size, slice.end)});
  return blocks;
}

/// What `from` gives the owner of a slice, block by block: sender and owner number it alike.
struct Given {
  size_t block, source, term;
  Range floats;
};
std::vector<Given> given(const SumTransfer& transfer, int from, Range slice) {
  std::vector<Given> all;
  const std::vector<Range> blocks = blocks_of(slice);
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (size_t s = 0; s < transfer.sources.size(); ++s) {
      const SumSource& source = transfer.sources[s];
      const Range floats = overlap(blocks[b], source.to);
      for (size_t t = 0; t < source.terms.size() && !floats.empty(); ++t) {
        if (source.terms[t].rank == from) all.push_back({b, s, t, floats});
      }
    }
  }
  return all;
}

/// Where float `at` of a contribution lies in the memory of the rank that makes it.
const float* float_at(const SumTransfer& transfer, size_t source, size_t term, int64_t at,
                      std::span<const std::byte> memory) {
  const SumSource& from = transfer.sources[source];
  return reinterpret_cast<const float*>(memory.data() + from.terms[term].offset) + (at - from.to.begin);
}

bool meet(const float* a, int64_t a_floats, const float* b, int64_t b_floats) {
  return a < b + b_floats && b < a + a_floats;
}

struct Message {
  int peer;
  uint32_t part;
  size_t block;
  std::span<std::byte> bytes;  // of a send: only read
};

}  // namespace

struct SumPull::Impl {
  struct FoldCall {
    float* out;
    std::vector<const float*> terms;
    std::vector<FoldStep> order;
    int64_t size;
  };

  SumTransfer transfer;
  Transport& transport;
  std::span<std::byte> arena, scratch;
  std::vector<float*> levels;
  int me;
  Range slice;
  std::vector<Range> parts;                      // by source
  std::vector<int64_t> positions;                // by source: where its part begins in a level
  std::vector<std::vector<const float*>> bases;  // by source and term: where the part's first float lies

  std::vector<int> givers, takers;  // whose windows I read, who reads mine
  std::vector<Message> receives, sends;
  std::vector<size_t> receives_until, folds_until;  // by block
  std::vector<FoldCall> folds;
  bool sends_first = false;  // what I send is overwritten by the sum
  float* staged = nullptr;   // the sum waits here until others have read what it overwrites

  Impl(SumTransfer t, Transport& net, std::span<std::byte> memory, std::vector<float*> stack,
       std::span<std::byte> private_memory)
      : transfer(std::move(t)),
        transport(net),
        arena(memory),
        scratch(private_memory),
        levels(std::move(stack)),
        me(net.rank()),
        slice(transfer.slices[member_of(transfer, net.rank())]) {
    TUTTI_CHECK(transfer.unit >= 0 && transfer.unit < kFlaggedUnits, "{}: no flags left for it", transfer.name);
    if (!slice.empty()) {
      TUTTI_CHECK(static_cast<int>(levels.size()) == transfer.levels, "{}: {} levels for a stack of {}", transfer.name,
                  levels.size(), transfer.levels);
    }
    prepare_giving();
    prepare_taking();
    prepare_folds();
  }

  std::span<const std::byte> memory_of(int rank) const { return rank == me ? arena : transport.window_of(rank); }

  float* take_scratch(int64_t floats) {
    const size_t bytes = align_up(floats, kAlign) * kFloat;
    TUTTI_CHECK(bytes <= scratch.size(), "{}: its scratch is too small", transfer.name);
    auto* at = reinterpret_cast<float*>(scratch.data());
    scratch = scratch.subspan(bytes);
    return at;
  }

  int member() const { return member_of(transfer, me); }

  /// Whether my stack lies on these floats.
  bool overwrites(const float* at, int64_t floats) const {
    const int64_t size = level_floats(transfer, member());
    return size > 0 &&
           std::any_of(levels.begin(), levels.end(), [&](const float* level) { return meet(level, size, at, floats); });
  }

  void prepare_giving() {
    bool stage = false;
    for (size_t m = 0; m < transfer.ranks.size(); ++m) {
      // Everybody begins with another owner, so that no rank is everyone's first.
      const size_t turn = (member() + m) % transfer.ranks.size();
      const int owner = transfer.ranks[turn];
      if (owner == me) continue;
      const std::vector<Given> all = given(transfer, me, transfer.slices[turn]);
      const bool reads = !transport.window_of(owner).empty();
      if (reads && !all.empty()) takers.push_back(owner);
      for (size_t part = 0; part < all.size(); ++part) {
        const Given& g = all[part];
        auto* at = const_cast<float*>(float_at(transfer, g.source, g.term, g.floats.begin, arena));
        check_inside(arena, at, g.floats.size());
        if (overwrites(at, g.floats.size())) (reads ? stage : sends_first) = true;
        if (!reads) sends.push_back({owner, static_cast<uint32_t>(part), g.block, bytes(at, g.floats.size())});
      }
    }
    std::stable_sort(sends.begin(), sends.end(), [](const auto& a, const auto& b) { return a.block < b.block; });
    TUTTI_CHECK(takers.empty() || arena.data() == transport.window().data(),
                "{}: the arena is not the window that the others read", transfer.name);
    TUTTI_CHECK(!stage || transfer.in_place(), "{}: the stack lies on what others read", transfer.name);
    if (stage) staged = take_scratch(slice.size());
  }

  void prepare_taking() {
    int64_t position = 0;
    for (const SumSource& source : transfer.sources) {
      parts.push_back(overlap(slice, source.to));
      positions.push_back(position);
      position += parts.back().size();
      bases.emplace_back(source.terms.size(), nullptr);
    }
    std::set<int> windows;
    for (size_t s = 0; s < transfer.sources.size(); ++s) {
      for (size_t t = 0; t < bases[s].size() && !parts[s].empty(); ++t) {
        const int rank = transfer.sources[s].terms[t].rank;
        const std::span<const std::byte> memory = memory_of(rank);
        if (memory.empty()) {
          bases[s][t] = take_scratch(parts[s].size());
          continue;
        }
        bases[s][t] = float_at(transfer, s, t, parts[s].begin, memory);
        check_inside(memory, bases[s][t], parts[s].size());
        if (rank == me) check_own(s, bases[s][t]);
        if (rank != me) windows.insert(rank);
      }
    }
    givers.assign(windows.begin(), windows.end());
    std::rotate(givers.begin(), std::upper_bound(givers.begin(), givers.end(), me), givers.end());
    for (int rank : transfer.ranks) {
      if (rank == me || !memory_of(rank).empty()) continue;
      const std::vector<Given> all = given(transfer, rank, slice);
      for (size_t part = 0; part < all.size(); ++part) {
        const Given& g = all[part];
        auto* at = const_cast<float*>(bases[g.source][g.term]) + (g.floats.begin - parts[g.source].begin);
        receives.push_back({rank, static_cast<uint32_t>(part), g.block, bytes(at, g.floats.size())});
      }
    }
    std::stable_sort(receives.begin(), receives.end(), [](const auto& a, const auto& b) { return a.block < b.block; });
  }

  static std::span<std::byte> bytes(float* at, int64_t floats) { return std::as_writable_bytes(std::span(at, floats)); }

  void check_inside(std::span<const std::byte> memory, const float* at, int64_t floats) const {
    const auto* begin = reinterpret_cast<const std::byte*>(at);
    TUTTI_CHECK(begin >= memory.data() && begin + floats * kFloat <= memory.data() + memory.size(),
                "{}: a contribution ends outside its window", transfer.name);
  }

  /// A sum may lie on one of its terms, float on float; on anything else of mine it would overwrite what it still
  /// reads.
  void check_own(size_t s, const float* base) const {
    if (!overwrites(base, parts[s].size())) return;
    TUTTI_CHECK(transfer.in_place() && base == levels[0] + (parts[s].begin - slice.begin),
                "{}: the stack lies on a contribution", transfer.name);
  }

  void prepare_folds() {
    for (const Range& block : blocks_of(slice)) {
      const size_t b = receives_until.size();
      const auto later = std::find_if(receives.begin(), receives.end(), [&](const auto& m) { return m.block > b; });
      receives_until.push_back(later - receives.begin());
      std::set<int64_t> borders{block.begin, block.end};
      for (const Range& part : parts) {
        for (int64_t border : {part.begin, part.end}) {
          if (!part.empty() && block.contains(border)) borders.insert(border);
        }
      }
      for (auto it = borders.begin(); std::next(it) != borders.end(); ++it) prepare_piece({*it, *std::next(it)});
      folds_until.push_back(folds.size());
    }
  }

  void prepare_piece(Range piece) {
    std::vector<size_t> adding;
    for (size_t s = 0; s < parts.size(); ++s) {
      if (parts[s].contains(piece.begin)) adding.push_back(s);
    }
    for (const LevelSum& sum : transfer.sums) {
      if (transfer.last() && sum.level == 0) {
        prepare_fold(sum, adding, piece);
      } else {
        TUTTI_CHECK(transfer.rounds > 1, "{}: more than its sum in the only round", transfer.name);
        for (size_t s : adding) prepare_fold(sum, {s}, piece);
      }
    }
  }

  /// The sources' sums, added from left to right, to the level's part of the first.
  void prepare_fold(const LevelSum& sum, const std::vector<size_t>& sources, Range piece) {
    FoldCall call{nullptr, {}, {}, piece.size()};
    const size_t first = sources[0];
    call.out = staged != nullptr ? staged + (piece.begin - slice.begin) : at_level(sum.level, first, piece.begin);
    for (size_t s : sources) {
      for (int term : sum.terms) {
        call.terms.push_back(term < 0 ? at_level(-1 - term, s, piece.begin)
                                      : bases[s].at(term) + (piece.begin - parts[s].begin));
      }
    }
    std::vector<FoldStep> order;
    for (const auto& [left, right] : sum.order) order.push_back({left, right});
    call.order = fold_order_of_groups(order, static_cast<int>(sum.terms.size()), static_cast<int>(sources.size()));
    folds.push_back(std::move(call));
  }

  float* at_level(int level, size_t s, int64_t at) const {
    return levels.at(level) + positions[s] + (at - parts[s].begin);
  }

  void run(uint64_t step, Deadline deadline, const std::function<void()>& begun) {
    const uint64_t turn = step * transfer.rounds + transfer.round + 1;
    const auto raise = [&](UnitFlag flag) { transport.raise(flag_of(transfer.unit, flag), turn); };
    const auto await = [&](const std::vector<int>& peers, UnitFlag flag) {
      for (int peer : peers) transport.await(peer, flag_of(transfer.unit, flag), turn, deadline, transfer.name);
    };
    Posted arriving(transport), leaving(transport);
    for (const Message& m : receives) arriving.recv(m.peer, Tag{transfer.id, m.part, step}, m.bytes);
    if (!takers.empty()) raise(kSumReady);
    for (const Message& m : sends) leaving.send(m.peer, Tag{transfer.id, m.part, step}, m.bytes);
    if (begun) begun();
    if (sends_first) leaving.wait_all(deadline);
    await(givers, kSumReady);
    size_t next = 0;
    for (size_t b = 0; b < folds_until.size(); ++b) {
      arriving.wait_first(receives_until[b], deadline);
      for (; next < folds_until[b]; ++next) {
        const FoldCall& call = folds[next];
        fold(call.out, call.terms, call.order, call.size);
      }
    }
    if (!givers.empty()) raise(kSumTaken);
    await(takers, kSumTaken);
    if (staged != nullptr) std::memcpy(levels[0], staged, slice.size() * kFloat);
    leaving.wait_all(deadline);
  }
};

SumPull::SumPull(SumTransfer transfer, Transport& transport, std::span<std::byte> arena, std::vector<float*> levels,
                 std::span<std::byte> scratch)
    : impl_(std::make_unique<Impl>(std::move(transfer), transport, arena, std::move(levels), scratch)) {}
SumPull::~SumPull() = default;

void SumPull::run(uint64_t step, Deadline deadline, const std::function<void()>& begun) {
  named(impl_->transfer.name, step, [&] { impl_->run(step, deadline, begun); });
}

int64_t SumPull::scratch_bytes(const SumTransfer& transfer, int rank, bool windows) {
  const int member = member_of(transfer, rank);
  const Range slice = transfer.slices[member];
  int64_t floats = 0;
  for (size_t m = 0; windows && transfer.in_place() && m < transfer.ranks.size(); ++m) {
    const bool other = static_cast<int>(m) != member;
    if (other && !overlap(slice, transfer.slices[m]).empty()) floats = align_up(slice.size(), kAlign);
  }
  for (const SumSource& source : transfer.sources) {
    for (const SumSource::Term& term : source.terms) {
      if (!windows && term.rank != rank) floats += align_up(overlap(slice, source.to).size(), kAlign);
    }
  }
  return floats * kFloat;
}

}  // namespace tutti
