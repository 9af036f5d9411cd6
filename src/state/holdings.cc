// moves() cuts every entry at all borders of holdings on either side, so that within a part
// everybody has all of it or nothing. Then it gives each taker of a part one giver, and joins parts
// that were cut only by the borders of others.
#include "state/holdings.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace tutti {

namespace {

// A holding, seen from its entry.
struct Holder {
  int rank;
  Range range;
};
/// The holdings of each entry, by rank.
std::map<size_t, std::vector<Holder>> by_entry(const Holdings& holdings) {
  std::map<size_t, std::vector<Holder>> entries;
  for (size_t r = 0; r < holdings.size(); ++r)
    for (const Holding& held : holdings[r])
      if (!held.range.empty()) entries[held.entry].push_back({static_cast<int>(r), held.range});
  return entries;
}

/// The last move to a taker, and the two holdings that it was between.
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
      // Only what is trained has slots of the optimizer. Slot -1 is the parameter itself.
      const int kept = p.role == Role::kTrained ? static_cast<int>(slots.size()) : 0;
      for (int slot = -1; slot < kept; ++slot)
        entries.push_back({{p.name, slot < 0 ? kParameterSlot : slots[slot], p.dims},
                           static_cast<int>(u),
                           slot,
                           i,
                           {p.offset, p.offset + p.size},
                           commit_of(p.role)});
    }
  return entries;
}

// Ownership is in floats of the unit, with padding; holdings are in elements of the entry.
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

std::vector<Move> moves(const Holdings& from, const Holdings& to) {
  const auto holders = by_entry(from);
  std::vector<Move> list;
  for (const auto& [entry, takers] : by_entry(to)) {
    const auto found = holders.find(entry);
    const std::vector<Holder> none, &givers = found == holders.end() ? none : found->second;

    std::set<int64_t> borders;
    for (const auto* side : {&takers, &givers})
      for (const Holder& holder : *side) borders.insert({holder.range.begin, holder.range.end});

    // Part by part, in ascending order: who has it, and who takes it from whom.
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

        // What a rank has itself does not travel. Otherwise takers are spread over
        // those who have it.
        const auto own = std::find_if(having.begin(), having.end(), [&](const Holder* giver) {
          return giver->rank == taker.rank;
        });
        const Holder& giver =
            own != having.end() ? **own : *having[static_cast<size_t>(taker.rank) % having.size()];
        // The borders of others cut nothing: what goes on between the same two holdings is one
        // move.
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
