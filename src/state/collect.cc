// All ranks know who holds what, so nobody asks: each of them goes through entries and parts in the
// same order and does its share, and the receiver of a message waits for its sender only. All
// messages are in one order for all, so the earliest that is not done can always be done: there is
// no circle of waits.
#include "state/collect.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"
#include "comm/gather.h"

namespace tutti {
namespace {

/// How the other ranks are told of a piece.
struct Told {
  uint64_t entry;
  int64_t begin, end;
};

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

template <class T>
T take(std::string_view& bytes) {
  // Takes a value off the front of what a rank told. All ranks run one program, so bytes that are
  // missing are a broken promise.
  TUTTI_CHECK(bytes.size() >= sizeof(T), "a rank told {} bytes less than it should",
              sizeof(T) - bytes.size());
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

// The digest of everything but the values, which must be equal on all ranks before
// values are compared.
Digest digest_of(const std::vector<EntryShape>& entries, const StateCounters& counters) {
  StateHasher hasher(entries.size());
  for (const EntryShape& entry : entries) hasher.add(entry, {});
  const std::string text = hasher.finish(counters);
  return sha256(std::as_bytes(std::span(text)));
}

/// Elements of an entry among the pieces of a rank.
std::span<float> values_in(std::span<const StatePiece> pieces, size_t entry, Range range) {
  for (const StatePiece& piece : pieces)
    if (piece.entry == entry && piece.range.begin <= range.begin && range.end <= piece.range.end)
      return piece.values.subspan(static_cast<size_t>(range.begin - piece.range.begin),
                                  static_cast<size_t>(range.size()));
  TUTTI_CHECK(false, "elements {} to {} of entry {} are not held here", range.begin, range.end,
              entry);
}

}  // namespace

Holdings gather_holdings(const std::vector<EntryShape>& entries, std::span<const StatePiece> mine,
                         Channel& channel) {
  const Digest shapes = digest_of(entries, {});
  std::string told(bytes_of(shapes));
  for (const StatePiece& piece : mine) {
    const bool fits = piece.entry < entries.size() && 0 <= piece.range.begin &&
                      !piece.range.empty() && piece.range.end <= entries[piece.entry].size() &&
                      static_cast<int64_t>(piece.values.size()) == piece.range.size();
    TUTTI_CHECK(fits, "a piece [{}, {}) of {} values of entry {} of {}", piece.range.begin,
                piece.range.end, piece.values.size(), piece.entry, entries.size());
    told += bytes_of(Told{piece.entry, piece.range.begin, piece.range.end});
  }

  Holdings holdings(static_cast<size_t>(channel.size()));
  const std::vector<std::string> all = gather_bytes(told, channel);
  for (int r = 0; r < channel.size(); ++r) {
    std::string_view rest = all[r];
    if (take<Digest>(rest) != shapes)
      throw Error(
          fmt::format("rank {} and rank {} list other entries of the state: this must never happen",
                      r, channel.rank()));
    while (!rest.empty()) {
      const Told piece = take<Told>(rest);
      holdings[r].push_back({piece.entry, {piece.begin, piece.end}});
    }
  }
  return holdings;
}

Collector::Collector(std::vector<EntryShape> entries, std::vector<StatePiece> mine,
                     Channel& channel)
    : entries_(std::move(entries)),
      mine_(std::move(mine)),
      channel_(channel),
      parts_(entries_.size()) {
  for (size_t e = 0; e <= entries_.size(); ++e)
    first_piece_.push_back(static_cast<size_t>(
        std::lower_bound(mine_.begin(), mine_.end(), e,
                         [](const StatePiece& p, size_t entry) { return p.entry < entry; }) -
        mine_.begin()));

  holdings_ = gather_holdings(entries_, mine_, channel_);
  // (rank, elements), by entry
  std::vector<std::vector<std::pair<int, Range>>> held(entries_.size());
  for (size_t r = 0; r < holdings_.size(); ++r)
    for (const Holding& holding : holdings_[r])
      held[holding.entry].emplace_back(static_cast<int>(r), holding.range);
  for (size_t e = 0; e < entries_.size(); ++e) {
    const int64_t size = entries_[e].size();
    std::set<int64_t> borders = {0, size};
    for (int64_t at = kHashedRange; at < size; at += kHashedRange) borders.insert(at);
    for (const auto& [rank, range] : held[e]) borders.insert({range.begin, range.end});
    for (auto border = borders.begin(); std::next(border) != borders.end(); ++border) {
      Part part{{*border, *std::next(border)}, {}};
      for (const auto& [rank, range] : held[e])
        if (range.contains(part.range.begin)) part.holders.push_back(rank);
      if (part.holders.empty())
        throw Error(fmt::format("no rank holds elements {} to {} of {}: this must never happen",
                                part.range.begin, part.range.end, title(entries_[e])));
      parts_[e].push_back(std::move(part));
    }
  }
  saved_ = writers();
}

bool Collector::holds(const Part& part) const {
  return std::binary_search(part.holders.begin(), part.holders.end(), channel_.rank());
}

std::span<float> Collector::values(size_t entry, Range range) const {
  return values_in(
      std::span(mine_).subspan(first_piece_[entry], first_piece_[entry + 1] - first_piece_[entry]),
      entry, range);
}

/// The parts of an entry, grouped by hashed range.
std::vector<std::span<const Collector::Part>> Collector::ranges_of(size_t entry) const {
  std::vector<std::span<const Part>> ranges;
  const std::span<const Part> all = parts_[entry];
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    while (end < all.size() &&
           all[end].range.begin / kHashedRange == all[begin].range.begin / kHashedRange)
      ++end;
    ranges.push_back(all.subspan(begin, end - begin));
  }
  return ranges;
}

/// The digest of a range that no single rank may hold whole. The giver of its first part makes it:
/// parts that it does not have are sent to it.
Digest Collector::joined_digest(size_t entry, std::span<const Part> parts) {
  const int joiner = giver(parts.front());
  Sha256 sha;
  std::vector<float> received;
  for (const Part& part : parts) {
    const bool there = std::binary_search(part.holders.begin(), part.holders.end(), joiner);
    if (channel_.rank() == joiner && there) {
      sha.add(std::as_bytes(values(entry, part.range)));
    } else if (channel_.rank() == joiner) {
      received.resize(static_cast<size_t>(part.range.size()));
      channel_.recv(giver(part), std::as_writable_bytes(std::span(received)));
      sha.add(std::as_bytes(std::span(received)));
    } else if (!there && channel_.rank() == giver(part)) {
      channel_.send(joiner, std::as_bytes(values(entry, part.range)));
    }
  }
  return sha.finish();
}

std::string Collector::hash(const StateCounters& counters) {
  // Everybody hashes the parts that it holds. A range that is cut into several parts also has a
  // digest as a whole, made by one rank, and that one goes into the hash of the state.
  const Digest all_but_values = digest_of(entries_, counters);
  std::string mine(bytes_of(all_but_values));
  std::vector<std::span<const std::byte>> held;
  for (size_t e = 0; e < entries_.size(); ++e)
    for (const Part& part : parts_[e])
      if (holds(part)) held.push_back(std::as_bytes(values(e, part.range)));
  const std::vector<Digest> hashed = sha256_each(held);
  auto next = hashed.begin();
  for (size_t e = 0; e < entries_.size(); ++e)
    for (const std::span<const Part> parts : ranges_of(e)) {
      for (const Part& part : parts)
        if (holds(part)) mine += bytes_of(*next++);
      if (parts.size() == 1) continue;
      const Digest joined = joined_digest(e, parts);
      if (channel_.rank() == giver(parts.front())) mine += bytes_of(joined);
    }

  // Digests of all ranks come together in one gather. From here on every rank does the same, and
  // takes them off in the order in which they were told.
  const std::vector<std::string> told = gather_bytes(mine, channel_);
  std::vector<std::string_view> rest(told.begin(), told.end());
  for (int r = 0; r < channel_.size(); ++r)
    if (take<Digest>(rest[r]) != all_but_values)
      throw Error(
          fmt::format("rank {} and rank {} count other steps or samples: this must never happen", r,
                      channel_.rank()));

  // All holders of a part must have the same bits; those of the giver go into the hash.
  StateHasher hasher(entries_.size());
  std::vector<Digest> digests;
  for (size_t e = 0; e < entries_.size(); ++e) {
    digests.clear();
    for (const std::span<const Part> parts : ranges_of(e)) {
      Digest digest{};
      for (const Part& part : parts) {
        digest = take<Digest>(rest[giver(part)]);
        for (size_t h = 1; h < part.holders.size(); ++h)
          if (take<Digest>(rest[part.holders[h]]) != digest)
            throw Error(
                fmt::format("rank {} and rank {} hold other values of {} from element {} to {}: "
                            "this must never "
                            "happen",
                            giver(part), part.holders[h], title(entries_[e]), part.range.begin,
                            part.range.end));
      }
      digests.push_back(parts.size() == 1 ? digest : take<Digest>(rest[giver(parts.front())]));
    }

    hasher.add(entries_[e], digests);
  }
  return hasher.finish(counters);
}

/// Everything is held by somebody, and by how far it is in the state its holders take turns: each of
/// them writes a share that lies together.
std::vector<SavedPart> Collector::writers() const {
  int64_t total = 0, before = 0;
  for (const EntryShape& entry : entries_) total += entry.size();
  std::vector<SavedPart> all;
  for (size_t e = 0; e < entries_.size(); ++e)
    for (const Part& part : parts_[e]) {
      const auto holders = static_cast<int64_t>(part.holders.size());
      const auto turn = static_cast<size_t>(before * holders / total);
      all.push_back({e, part.range, part.holders[turn]});
      before += part.range.size();
    }
  return all;
}

std::string Collector::save(const SaveRequest& request, const TellAll& tell_all,
                            std::span<const float> copy) const {
  // In a copy the parts follow one another in the order in which they are asked for.
  size_t at = 0;
  const auto values = [&](size_t part) -> std::span<const float> {
    const SavedPart& saved = saved_[part];
    if (copy.empty()) return this->values(saved.entry, saved.range);
    const auto size = static_cast<size_t>(saved.range.size());
    return copy.subspan(std::exchange(at, at + size), size);
  };
  return save_checkpoint(request, {entries_, saved_, values, channel_.rank(), tell_all});
}

int64_t Collector::share() const {
  int64_t floats = 0;
  for (const SavedPart& part : saved_)
    if (part.writer == channel_.rank()) floats += part.range.size();
  return floats;
}

void Collector::copy_share(std::span<float> copy) const {
  // Parts that lie together are copied at once: a large copy goes past the caches.
  std::span<const float> run;
  size_t at = 0;
  const auto flush = [&] {
    std::copy(run.begin(), run.end(), copy.subspan(at).begin());
    at += run.size();
  };
  for (const SavedPart& part : saved_) {
    if (part.writer != channel_.rank()) continue;
    const std::span<const float> values = this->values(part.entry, part.range);
    if (run.data() + run.size() == values.data()) {
      run = {run.data(), run.size() + values.size()};
      continue;
    }
    flush();
    run = values;
  }
  flush();
}

void move_values(const std::vector<Move>& moves, std::span<const StatePiece> from,
                 std::span<const StatePiece> to, Channel& channel) {
  for (const Move& move : moves) {
    const bool gives = move.from == channel.rank(), takes = move.to == channel.rank();
    if (gives && takes) {
      const std::span<float> source = values_in(from, move.entry, move.range);
      std::copy(source.begin(), source.end(), values_in(to, move.entry, move.range).begin());
    } else if (gives) {
      channel.send(move.to, std::as_bytes(values_in(from, move.entry, move.range)));
    } else if (takes) {
      channel.recv(move.from, std::as_writable_bytes(values_in(to, move.entry, move.range)));
    }
  }
}

void hand_over(const std::vector<EntryShape>& entries, std::span<const StatePiece> from,
               std::span<const StatePiece> to, Channel& channel) {
  const Holdings had = gather_holdings(entries, from, channel);
  const Holdings wanted = gather_holdings(entries, to, channel);
  move_values(moves(had, wanted), from, to, channel);
}

}  // namespace tutti
