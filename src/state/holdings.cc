#include "state/holdings.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace tutti {

namespace {

struct Holder {
  int rank;
  Range range;
};
/// By entry.
std::map<size_t, std::vector<Holder>> by_entry(const Holdings& holdings) {
  std::map<size_t, std::vector<Holder>> entries;
  for (size_t r = 0; r < holdings.size(); ++r)
    for (const Holding& held : holdings[r])
      if (!held.range.empty()) entries[held.entry].push_back({static_cast<int>(r), held.range});
  return entries;
}

/// The last move to a taker, and the holdings that it is of.
struct Last {
  size_t move;
  Range given, taken;
};

}  // namespace

std::vector<EntryPlace> entry_places(const ModelShape& shape,
                                     const std::vector<std::string>& slots) {
  std::vector<EntryPlace> entries;
  for (size_t u = 0; u < shape.blocks.size(); ++u)
    for (size_t i = 0; i < shape.blocks[u].parameters.size(); ++i) {
      const ParameterShape& p = shape.blocks[u].parameters[i];
      const int kept = p.role == Role::kTrained ? static_cast<int>(slots.size()) : 0;
      for (int slot = -1; slot < kept; ++slot)
        entries.push_back({{p.name, slot < 0 ? "parameter" : slots[slot], p.dims},
                           static_cast<int>(u),
                           slot,
                           i,
                           {p.offset, p.offset + p.size},
                           commit_of(p.role)});
    }
  return entries;
}

Holdings holdings_of(const std::vector<EntryPlace>& entries, const Plan& plan) {
  Holdings holdings(static_cast<size_t>(plan.ranks));
  for (size_t e = 0; e < entries.size(); ++e) {
    const Ownership& unit = plan.ownership[entries[e].unit];
    for (const Owned& owned : entries[e].slot < 0 ? unit.parameters : unit.moments) {
      const Range part = overlap(owned.range, entries[e].floats);
      if (part.empty()) continue;
      for (int rank : owned.ranks)
        holdings[rank].push_back(
            {e, {part.begin - entries[e].floats.begin, part.end - entries[e].floats.begin}});
    }
  }
  return holdings;
}

Holdings held_by_one(const std::vector<EntryShape>& entries, int rank, int ranks) {
  Holdings holdings(static_cast<size_t>(ranks));
  for (size_t e = 0; e < entries.size(); ++e) holdings[rank].push_back({e, {0, entries[e].size()}});
  return holdings;
}

std::vector<Move> moves(const Holdings& from, const Holdings& to) {
  const auto holders = by_entry(from);
  std::vector<Move> list;
  for (const auto& [entry, takers] : by_entry(to)) {
    const auto found = holders.find(entry);
    const std::vector<Holder> none, &givers = found == holders.end() ? none : found->second;
    std::set<int64_t> borders;
    for (const auto* side : {&takers, &givers})
      for (const Holder& holder : *side) borders.insert({holder.range.begin, holder.range.end});
    std::map<int, Last> last;  // by taker
    for (auto border = borders.begin(); std::next(border) != borders.end(); ++border) {
      const Range part{*border, *std::next(border)};
      std::vector<const Holder*> having;
      for (const Holder& giver : givers)
        if (giver.range.contains(part.begin)) having.push_back(&giver);
      for (const Holder& taker : takers) {
        if (!taker.range.contains(part.begin)) continue;
        if (having.empty())
          throw Error(fmt::format("nobody holds elements {} to {} of entry {}", part.begin,
                                  part.end, entry));
        const auto own = std::find_if(having.begin(), having.end(), [&](const Holder* giver) {
          return giver->rank == taker.rank;
        });
        const Holder& giver =
            own != having.end() ? **own : *having[static_cast<size_t>(taker.rank) % having.size()];
        // Others' borders cut nothing: what goes on in the same holdings is one move.
        const auto before = last.find(taker.rank);
        if (before != last.end() && list[before->second.move].from == giver.rank &&
            before->second.given == giver.range && before->second.taken == taker.range &&
            list[before->second.move].range.end == part.begin) {
          list[before->second.move].range.end = part.end;
          continue;
        }
        last[taker.rank] = {list.size(), giver.range, taker.range};
        list.push_back({entry, part, giver.rank, taker.rank});
      }
    }
  }
  return list;
}

}  // namespace tutti
