// A state that is spread over ranks, some of it on several of them: its hash and its checkpoint are
// the same as those of one rank that holds everything.
//
//   part     elements of an entry between two borders of pieces or of hashed ranges: a rank holds
//            all of it or nothing
//   holders  the ranks that have a part: all of them must have the same bits
#pragma once

#include <string>
#include <vector>

#include "comm/collectives.h"
#include "state/checkpoint.h"
#include "state/holdings.h"

namespace tutti {

/// What every rank holds, as all of them tell each other. `entries` is the same on all ranks and
/// `mine` are this rank's pieces of them, in order: Error naming who lists others. Collective.
Holdings gather_holdings(const std::vector<EntryShape>& entries, std::span<const StatePiece> mine,
                         Channel& channel);

class Collector {
 public:
  /// Collective. `entries` is the same on all ranks; `mine` are this rank's pieces of them, in
  /// order. Their values are read in the calls below and stay the caller's. The channel must
  /// outlive it. Throws Error where nobody holds some element, or the ranks' entries differ.
  Collector(std::vector<EntryShape> entries, std::vector<StatePiece> mine, Channel& channel);

  /// The state_hash() of the whole. Collective; every rank returns it. Every holder hashes what it
  /// holds. Throws an Error that names two ranks and the entry if their bits differ, or two ranks
  /// whose counters do.
  std::string hash(const StateCounters& counters);
  /// The save_checkpoint() of the whole, to which the holders of an entry write equal shares. With
  /// `copy`, which copy_share() has filled, this rank's share is read from there: it may be called
  /// on another thread, and the pieces may change meanwhile.
  std::string save(const SaveRequest& request, const TellAll& tell_all,
                   std::span<const float> copy = {}) const;
  /// Floats of what this rank writes, and a copy of them as they are now.
  int64_t share() const;
  void copy_share(std::span<float> copy) const;

  const std::vector<EntryShape>& entries() const { return entries_; }
  const std::vector<StatePiece>& pieces() const { return mine_; }

 private:
  struct Part {
    Range range;               // elements of the entry, inside one hashed range
    std::vector<int> holders;  // ascending
  };
  /// The holder whose values count where they are collected.
  static int giver(const Part& part) { return part.holders.front(); }
  bool holds(const Part& part) const;
  std::span<float> values(size_t entry, Range range) const;
  std::vector<std::span<const Part>> ranges_of(size_t entry) const;
  Digest joined_digest(size_t entry, std::span<const Part> parts);
  std::vector<SavedPart> writers() const;

  const std::vector<EntryShape> entries_;
  const std::vector<StatePiece> mine_;
  Channel& channel_;
  Holdings holdings_;
  std::vector<std::vector<Part>> parts_;  // [entry], ascending
  std::vector<SavedPart> saved_;          // what a save writes, and who does
  // [entry]: its first place in mine_; one more at the end
  std::vector<size_t> first_piece_;
};

/// Hands the state over from one layout to another: `from` are the pieces that this rank has, `to`
/// those that it is to have, in other memory; either may be none. Collective over everybody who has
/// or takes some. Throws Error where nobody has an element that somebody takes.
void hand_over(const std::vector<EntryShape>& entries, std::span<const StatePiece> from,
               std::span<const StatePiece> to, Channel& channel);
/// Moves values between two layouts of one set of ranks, as moves() says. `from` and `to` are this
/// rank's pieces in each. Collective.
void move_values(const std::vector<Move>& moves, std::span<const StatePiece> from,
                 std::span<const StatePiece> to, Channel& channel);

}  // namespace tutti
