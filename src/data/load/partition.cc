// Which rank reads a record. This is pure arithmetic on record numbers (and columns), so that every
// rank can compute every other's share.
#include "data/load/partition.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/reserved_words.h"
#include "grid/order.h"

namespace tutti {
namespace {

/// The finaliser of splitmix64: neighbouring numbers become unrelated ones.
uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

/// floor(a * b / n), even if the product needs 128 bits.
int64_t share(uint64_t a, uint64_t b, uint64_t n) {
  return static_cast<int64_t>(static_cast<unsigned __int128>(a) * b / n);
}

/// The upper bits of hash * ranks, which are even to 2^-64 for any number of ranks.
int by_hash(uint64_t value, int ranks) {
  return static_cast<int>(
      static_cast<unsigned __int128>(mixed(value)) * static_cast<unsigned>(ranks) >> 64);
}

Partition by_feature(const LayoutConfig& layout, std::shared_ptr<const Dataset> data, int ranks) {
  const std::string& column = layout.partition_by;
  const bool classes = partition_by_class(layout);

  if (data->size() > 0) {  // a missing column is found here, not in the middle of a run
    if (classes && data->label(0) < 0) {
      throw Error(fmt::format("layout.partition_by = \"{}\": the data has no classes", column));
    }
    if (!classes) data->feature(0, column);
  }
  if (classes) {
    return [data = std::move(data), ranks](int64_t record) {
      return by_hash(static_cast<uint64_t>(data->label(record)), ranks);
    };
  }
  return [data = std::move(data), ranks, column](int64_t record) {
    return by_hash(data->feature(record, column), ranks);
  };
}

}  // namespace

Partition make_partition(const LayoutConfig& layout, std::shared_ptr<const Dataset> data, int ranks,
                         const OwnPartition& own) {
  TUTTI_CHECK(ranks > 0, "a partition over {} ranks", ranks);
  switch (layout.partition) {
    case PartitionKind::kLanes:
      return {};
    case PartitionKind::kEven:
      return [n = static_cast<uint64_t>(data->size()), ranks](int64_t record) {
        return static_cast<int>(
            share(static_cast<uint64_t>(record), static_cast<uint64_t>(ranks), n));
      };
    case PartitionKind::kRoundRobin:
      return [ranks](int64_t record) { return static_cast<int>(record % ranks); };
    case PartitionKind::kHash:
      return [ranks](int64_t record) { return by_hash(static_cast<uint64_t>(record), ranks); };
    case PartitionKind::kFeature:
      return by_feature(layout, std::move(data), ranks);
    case PartitionKind::kOwn:
      break;
  }

  // What a program decides for itself is checked record by record: a rank that does not exist would
  // never be asked for the record.
  if (!own)
    throw Error("layout.partition = \"own\" needs a function: only a C++ program can give one");
  return [own, data = std::move(data), ranks](int64_t record) {
    const int rank = own(*data, record, ranks);
    if (rank < 0 || rank >= ranks) {
      throw Error(fmt::format("the program's own partition gives record {} to rank {} of {}",
                              record, rank, ranks));
    }
    return rank;
  };
}

Skew skew_of(const Partition& partition, const Dataset& data, int ranks, int64_t most) {
  Skew skew;
  skew.records.resize(static_cast<size_t>(ranks));
  skew.classes.resize(static_cast<size_t>(ranks));
  std::vector<int64_t> all;
  const auto size = static_cast<uint64_t>(data.size());
  const uint64_t looked = std::min(size, static_cast<uint64_t>(most));
  std::vector<int64_t> records(looked);
  // A stride would hide a pattern of the partition, or make one up; a keyed sample does neither.
  if (looked > 0) Permutation(0, 0, size).places(0, records);
  for (const int64_t record : records) {
    const auto rank = static_cast<size_t>(partition ? partition(record) : 0);
    ++skew.records[rank];
    const int64_t label = data.label(record);
    if (label < 0) continue;
    for (std::vector<int64_t>* counts : {&all, &skew.classes[rank]}) {
      if (counts->size() <= static_cast<size_t>(label))
        counts->resize(static_cast<size_t>(label) + 1);
      ++(*counts)[static_cast<size_t>(label)];
    }
  }

  // The ratio compares the fullest rank with the mean.
  if (looked > 0) {
    const auto fullest =
        static_cast<double>(*std::max_element(skew.records.begin(), skew.records.end()));
    skew.ratio = fullest * ranks / static_cast<double>(looked);
  }
  if (all.empty()) {
    skew.classes.clear();
    return skew;
  }

  // The distance of two distributions is half the sum of their differences: 0 if they are equal, 1
  // if they have nothing in common.
  const auto sum = [](const std::vector<int64_t>& counts) {
    int64_t total = 0;
    for (const int64_t count : counts) total += count;
    return static_cast<double>(total);
  };
  for (std::vector<int64_t>& counts : skew.classes) {
    counts.resize(all.size());
    if (sum(counts) == 0) continue;  // the ratio shows a rank without records
    double distance = 0;
    for (size_t c = 0; c < all.size(); ++c) {
      distance += std::abs(static_cast<double>(counts[c]) / sum(counts) -
                           static_cast<double>(all[c]) / sum(all));
    }
    skew.class_distance = std::max(skew.class_distance, distance / 2);
  }
  return skew;
}

std::string to_text(const Skew& skew) {
  int64_t records = 0;
  for (const int64_t count : skew.records) records += count;
  std::string text =
      fmt::format("partition of {} records over {} ranks: the fullest has {:.3f} of the mean",
                  records, skew.records.size(), skew.ratio);
  if (!skew.classes.empty()) {
    text +=
        fmt::format("; classes differ by up to {:.3f} (total variation) from those of all records",
                    skew.class_distance);
  }
  text += "\n";

  // A table for people: more ranks or classes than these would not be read.
  constexpr size_t kRanks = 16, kClasses = 16;

  // One line per rank, with the counts of its classes.
  for (size_t r = 0; r < std::min(skew.records.size(), kRanks); ++r) {
    text += fmt::format("  rank {:<3} {:>10} records", r, skew.records[r]);
    if (!skew.classes.empty()) {
      text += "   classes";
      for (size_t c = 0; c < std::min(skew.classes[r].size(), kClasses); ++c) {
        text += fmt::format(" {}", skew.classes[r][c]);
      }
      if (skew.classes[r].size() > kClasses) text += " ...";
    }
    text += "\n";
  }
  if (skew.records.size() > kRanks)
    text += fmt::format("  and {} more ranks\n", skew.records.size() - kRanks);
  return text;
}

}  // namespace tutti
