// A state in pieces over ranks: the hash and the bytes of a checkpoint are those of one rank that
// holds everything.
#include "state/collect.h"

#include <map>
#include <random>

#include "comm/gather.h"
#include "fixture.h"
#include "state/checkpoint.h"
#include "state/load_checkpoint.h"
#include "support/transports.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

const StateCounters kCounters{7, 224, "plateau"};

/// A state with an entry of several hashed ranges, small ones, a single value and one without any.
struct Whole {
  Whole() {
    add("embed.weight", "parameter", {2 * kHashedRange + 77});
    add("embed.weight", "m", {2 * kHashedRange + 77});
    add("block.weight", "parameter", {300, 7});
    add("block.scale", "parameter", {});
    add("block.none", "parameter", {0, 4});
    add("head.weight", "parameter", {kHashedRange});
    state.counters = kCounters;
  }
  Whole(const Whole&) = delete;
  Whole& operator=(const Whole&) = delete;
  void add(const std::string& name, const std::string& slot, std::vector<int64_t> dims) {
    const EntryShape shape{name, slot, dims};
    auto& values = storage.emplace_back(std::make_unique<std::vector<float>>(shape.size()));
    for (size_t i = 0; i < values->size(); ++i)
      (*values)[i] = static_cast<float>(storage.size()) + 1.0f / static_cast<float>(i + 3);
    state.entries.push_back({name, slot, std::move(dims), *values});
  }
  std::vector<EntryShape> entries() const { return shapes_of(state); }
  std::vector<std::unique_ptr<std::vector<float>>> storage;
  State state;
};

/// What one rank holds, in memory of its own.
struct HeldPieces {
  void add(size_t entry, Range range, std::span<const float> whole) {
    auto& values = storage.emplace_back(std::make_unique<std::vector<float>>(
        whole.begin() + range.begin, whole.begin() + range.end));
    pieces.push_back({entry, range, *values});
  }
  std::vector<std::unique_ptr<std::vector<float>>> storage;
  std::vector<StatePiece> pieces;
};

/// Entries are cut at random places; each cut is at one or more ranks.
std::vector<HeldPieces> dealt(const Whole& whole, int ranks, uint64_t seed) {
  std::mt19937_64 draw(seed);
  const auto below = [&draw](int64_t n) {
    return static_cast<int64_t>(draw() % static_cast<uint64_t>(n));
  };
  std::vector<HeldPieces> held(static_cast<size_t>(ranks));
  for (size_t e = 0; e < whole.state.entries.size(); ++e) {
    const auto values = whole.state.entries[e].values;
    const auto size = static_cast<int64_t>(values.size());
    for (int64_t begin = 0, end = 0; begin < size; begin = end) {
      end = below(2) == 0 ? size : begin + 1 + below(size - begin);
      const auto first = static_cast<size_t>(below(ranks));
      for (size_t r = 0; r < held.size(); ++r)
        if (r == first || below(3) == 0) held[r].add(e, {begin, end}, values);
    }
  }
  return held;
}

/// Calls `body` on every rank of a mesh of threads; what it throws comes back.
std::vector<std::string> on_ranks(
    const Whole& whole, std::vector<HeldPieces>& held,
    const std::function<void(Collector&, int, const TellAll& tell_all)>& body) {
  std::vector<std::string> faults(held.size(), "no fault");
  over({"inproc", "inproc", true, false}, static_cast<int>(held.size()), [&](TestRank& me) {
    Channel channel(me.transport, me.clock, {64, 79}, std::chrono::seconds(20));
    try {
      Collector collector(whole.entries(), held[me.rank].pieces, channel);
      body(collector, me.rank,
           [&](const std::string& mine) { return gather_bytes(mine, channel); });
    } catch (const Error& error) {
      faults[me.rank] = error.what();
    }
  });
  return faults;
}

using CollectTest = CheckpointTest;

TEST_F(CollectTest, TheHashAndTheFilesOfAnyCutAreThoseOfOneRank) {
  const Whole whole;
  const std::string expected = state_hash(whole.state);
  const std::string path = save_checkpoint(folder_ + "/one", whole.state, "the job");
  const auto files_in = [](const std::string& checkpoint) {
    std::map<std::string, std::string> files;
    for (const std::string& name : names_in(checkpoint))
      files[name] = slurp(checkpoint + "/" + name);
    return files;
  };
  const auto files = files_in(path);
  EXPECT_EQ(files.size(), 3u);
  const uint64_t seed = std::random_device{}();
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(fmt::format("seed {} round {}", seed, round));
    const int ranks = 1 + round % 5;
    auto held = dealt(whole, ranks, seed + static_cast<uint64_t>(round));
    const std::string folder = fmt::format("{}/{}", folder_, round);
    std::string saved;
    for (const std::string& fault :
         on_ranks(whole, held, [&](Collector& collector, int rank, const TellAll& tell_all) {
           EXPECT_EQ(collector.hash(kCounters), expected);
           const std::string at = collector.save(
               {.folder = folder, .counters = kCounters, .job_toml = "the job"}, tell_all);
           EXPECT_EQ(at, folder + "/step-00000007");
           if (rank == 0) saved = at;
         })) {
      EXPECT_EQ(fault, "no fault");
    }
    EXPECT_EQ(saved, folder + "/step-00000007");
    EXPECT_TRUE(files_in(saved) == files);

    for (HeldPieces& rank : held) {  // another cut reads the file of one rank
      for (auto& values : rank.storage) std::fill(values->begin(), values->end(), -1.0f);
      const StateCounters counters = load_checkpoint(path, whole.entries(), rank.pieces);
      EXPECT_EQ(counters.schedule, kCounters.schedule);
      EXPECT_EQ(counters.step, kCounters.step);
      for (const StatePiece& piece : rank.pieces) {
        const auto all = whole.state.entries[piece.entry].values;
        EXPECT_TRUE(
            std::equal(piece.values.begin(), piece.values.end(), all.begin() + piece.range.begin));
      }
    }
    std::filesystem::remove_all(folder);
  }
}

TEST_F(CollectTest, AReplicaWithAnotherBitIsNamedOnEveryRank) {
  const Whole whole;
  std::vector<HeldPieces> held(3);
  for (size_t e = 0; e < whole.state.entries.size(); ++e) {
    const auto values = whole.state.entries[e].values;
    const Range all{0, static_cast<int64_t>(values.size())};
    if (all.empty()) continue;
    held[0].add(e, all, values);
    if (e == 1) held[2].add(e, {kHashedRange + 5, kHashedRange + 500}, values);
  }
  (*held[2].storage[0])[3] = -0.25f;
  const auto faults = on_ranks(
      whole, held, [](Collector& collector, int, const TellAll&) { collector.hash(kCounters); });
  for (const std::string& fault : faults)
    EXPECT_EQ(
        fault,
        fmt::format(
            "rank 0 and rank 2 hold other values of embed.weight (m) from element {} to {}: this "
            "must never happen",
            kHashedRange + 5, kHashedRange + 500));
}

TEST_F(CollectTest, CountersThatDifferAndElementsThatNobodyHoldsAreRefused) {
  const Whole whole;
  auto held = dealt(whole, 2, 1);
  auto faults = on_ranks(whole, held, [](Collector& collector, int rank, const TellAll&) {
    collector.hash({7 + rank, 224, ""});
  });
  for (const std::string& fault : faults)
    EXPECT_TRUE(contains(fault, "count other steps or samples")) << fault;

  std::vector<HeldPieces> gap(2);
  for (size_t e = 0; e < whole.state.entries.size(); ++e) {
    const auto values = whole.state.entries[e].values;
    if (!values.empty())
      gap[e % 2].add(e, {0, e == 2 ? 2000 : static_cast<int64_t>(values.size())}, values);
  }
  faults = on_ranks(whole, gap, [](Collector&, int, const TellAll&) {});
  for (const std::string& fault : faults)
    EXPECT_EQ(
        fault,
        "no rank holds elements 2000 to 2100 of block.weight (parameter): this must never happen");
}

TEST_F(CollectTest, APieceIsUntouchedByACheckpointOfOtherShapesAndChecksWhatItReads) {
  const Whole whole;
  const std::string path = save_checkpoint(folder_, whole.state, "");
  auto held = dealt(whole, 2, 3);
  const auto fault_of = [&](const std::vector<EntryShape>& entries) -> std::string {
    for (auto& values : held[0].storage) std::fill(values->begin(), values->end(), -1.0f);
    try {
      load_checkpoint(path, entries, held[0].pieces);
    } catch (const Error& error) {
      for (auto& values : held[0].storage)
        EXPECT_EQ(std::count(values->begin(), values->end(), -1.0f),
                  static_cast<int64_t>(values->size()));
      return error.what();
    }
    return "no fault";
  };
  auto shaped = whole.entries();
  shaped[2].dims = {7, 300};
  EXPECT_TRUE(contains(fault_of(shaped), "block.weight is [300,7], the job has [7,300]"));

  // Another 1 MiB than its own is no rank's business.
  const std::string file = path + "/parameters.safetensors";
  std::string bytes = slurp(file);
  bytes[bytes.size() - 1] ^= 1;  // of head.weight, entry 5
  spill(file, bytes);
  HeldPieces first, last;
  first.add(0, {5, kHashedRange + 3}, whole.state.entries[0].values);
  last.add(5, {7, 9}, whole.state.entries[5].values);
  EXPECT_EQ(load_checkpoint(path, whole.entries(), first.pieces).step, kCounters.step);
  try {
    load_checkpoint(path, whole.entries(), last.pieces);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_TRUE(contains(error.what(), file + ": damaged: elements 0 to ")) << error.what();
  }
}

TEST_F(CollectTest, HoldersOfTheSameWriteEqualShares) {
  const Whole whole;
  std::vector<HeldPieces> held(3);
  for (HeldPieces& rank : held)
    for (size_t e = 0; e < whole.state.entries.size(); ++e)
      if (const auto values = whole.state.entries[e].values; !values.empty())
        rank.add(e, {0, static_cast<int64_t>(values.size())}, values);
  std::vector<size_t> shares(held.size());  // hashed ranges
  const auto save = [&](Collector& collector, int rank, const TellAll& tell_all) {
    collector.save({.folder = folder_, .counters = kCounters}, [&](const std::string& mine) {
      if (mine.size() > 1) shares[rank] = (mine.size() - 1) / sizeof(Digest);
      return tell_all(mine);
    });
  };
  for (const std::string& fault : on_ranks(whole, held, save)) EXPECT_EQ(fault, "no fault");
  // Equal in floats: those of the first rank are two whole ranges, and of the last four cut ones.
  EXPECT_EQ(shares, (std::vector<size_t>{2, 3, 4}));
}

TEST_F(CollectTest, AFailureOfAnyRankIsToldByAllAndLeavesNothing) {
  const Whole whole;
  auto held = dealt(whole, 3, 5);
  const std::string before = save_checkpoint(folder_, whole.state, "");
  const auto faults =
      on_ranks(whole, held, [&](Collector& collector, int rank, const TellAll& tell_all) {
        int stage = 0;
        collector.save({.folder = folder_, .counters = {8, 256, ""}}, [&](const std::string& mine) {
          return tell_all(rank == 2 && ++stage == 2 ? "-the disk of rank 2 is full" : mine);
        });
      });
  for (const std::string& fault : faults) EXPECT_EQ(fault, "the disk of rank 2 is full");
  EXPECT_EQ(names_in(folder_), (std::set<std::string>{"latest", "step-00000007"}));
  EXPECT_EQ(latest_checkpoint(folder_), before);
}

}  // namespace
}  // namespace tutti
