// Which rank reads a record. That is part of the layout: the order of the samples and who computes
// them do not depend on it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/job.h"
#include "data/core/dataset.h"

namespace tutti {

/// The rank that reads a record. A pure function, the same on every rank.
using Partition = std::function<int(int64_t record)>;
/// A C++ program's own partition (layout.partition = "own").
using OwnPartition = std::function<int(const Dataset& data, int64_t record, int ranks)>;

/// The partition that layout.partition names; empty for "lanes", where the rank that computes a
/// record reads it. Throws Error for "own" without a function, and for a feature that the data does
/// not have.
Partition make_partition(const LayoutConfig& layout, std::shared_ptr<const Dataset> data, int ranks,
                         const OwnPartition& own = {});

/// How unequal a partition is, over all records or over a keyed sample of `most` of them.
struct Skew {
  std::vector<int64_t> records;               ///< by rank
  std::vector<std::vector<int64_t>> classes;  ///< [rank][class]; empty if there are none
  double ratio = 1;                           ///< of the fullest rank to the mean
  /// the largest total variation distance between a rank's classes and those of all records
  double class_distance = 0;
};
Skew skew_of(const Partition& partition, const Dataset& data, int ranks, int64_t most = 1 << 20);
/// The skew in a few lines, for people.
std::string to_text(const Skew& skew);

}  // namespace tutti
