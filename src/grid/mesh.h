// Ranks as a mesh of three axes, and how a step's lanes, micro-batches and sums are dealt out over
// the data axis.
//
//   D x T x P  data, tensor and pipeline ranks; rank = (p * D + d) * T + t, so that tensor
//              neighbours are next to each other
//   Z          shards: how many data ranks slice state among them (ZeRO); there are D / Z replicas
//              of every slice (if more than one: hybrid sharding, in FSDP's terms)
//   round      a part of the step after which the data ranks sum what they have; a step has one or,
//              with fold = "owner" or order = "micro", several
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "grid/grid.h"

namespace tutti {

struct Coordinates {
  int data = 0, tensor = 0, pipeline = 0;
  bool operator==(const Coordinates&) const = default;
};

struct Mesh {
  int data = 1, tensor = 1, pipeline = 1;
  int shards = 1;  ///< divides data
  int ranks() const { return data * tensor * pipeline; }
  Coordinates at(int rank) const {
    return {rank / tensor % data, rank % tensor, rank / tensor / data};
  }
  int rank(const Coordinates& c) const { return (c.pipeline * data + c.data) * tensor + c.tensor; }
  /// Data coordinate d holds slice shard(d) of those that its replica is cut into.
  int shard(int d) const { return d % shards; }
  bool operator==(const Mesh&) const = default;
};
/// The mesh of a layout. It must make up all ranks, which config/check/layout.cc sees to.
Mesh mesh_of(const LayoutConfig& layout);

/// How a step's sums are made.
struct SumOptions {
  Batch batch;
  int ranks = 1;  ///< of the data axis
  /// fold = "owner": lane l belongs to data rank l mod D, and each turn of D lanes is a round.
  bool owner = false;
  bool micro = false;  ///< order = "micro": the lanes are summed after each micro-batch
};

struct MicroBatch {
  int lane = 0, micro = 0;  ///< lane below 0: none, the rank idles
  bool idle() const { return lane < 0; }
  bool operator==(const MicroBatch&) const = default;
};

/// The lanes of a data rank, ascending.
std::vector<int> lanes_of(const SumOptions& options, int data_rank);
/// What a data rank computes in each round, in order. All ranks have the same number of rounds; in
/// some of them a rank may have nothing to do.
std::vector<std::vector<MicroBatch>> rounds_of(const SumOptions& options, int data_rank);
/// The same for ranks that go in step because they meet in every micro-batch: a rank that has less
/// to do in a round than others begins it by idling.
std::vector<std::vector<MicroBatch>> rounds_in_step(const SumOptions& options, int data_rank);
/// What a rank does in a step, in order: these rounds, one after the other.
std::vector<MicroBatch> sequence_of(const SumOptions& options, int data_rank);
/// Whether every rank's part of every round is at most one micro-batch: then a gradient passes
/// through to the slices' owners and is never kept whole.
bool passes_through(const SumOptions& options);

/// What the owner of a slice adds when a round is over. Its stack has levels. A term is a level
/// (written -1 - level) or one of the round's contributions (its number). The sum over `order`
/// (term `first` += term `second`, one after the other) ends up in terms[0] and goes to `level`.
struct LevelSum {
  int level = 0;
  std::vector<int> terms;
  std::vector<std::pair<int, int>> order;
  bool operator==(const LevelSum&) const = default;
};

/// What a data rank brings to a round: the sum over one subtree of its lanes.
struct Contribution {
  int data_rank = 0;
  Range lanes;      ///< the subtree whose sum it is
  int partial = 0;  ///< its number among those of the rank
  bool operator==(const Contribution&) const = default;
};

struct Round {
  std::vector<Contribution> contributions;  ///< in lane order
  std::vector<LevelSum> sums;               ///< after the last round level 0 is the step's sum
};
/// The rounds of a step whose data ranks all sum at once.
std::vector<Round> sum_rounds(const SumOptions& options);
/// A sum by hosts, for steps that otherwise have one round. The ranks of a host, `together` of the
/// data axis, add up each of the maximal subtrees of the host's lanes, into a level of its own;
/// then the ranks at one position in all hosts add these up.
std::vector<Range> subtrees_of_host(const SumOptions& options, int together, int host);
Round round_inside(const SumOptions& options, int together, int host);
Round round_between(const SumOptions& options, int together, int position);
/// Levels of an owner's stack: at least 1.
int stack_levels(const std::vector<Round>& rounds);

/// The most parts that arrive at one rank from the others when `ranks` tensor ranks sum over
/// `columns` columns. The sum has as many parts as columns.
int64_t arriving_parts(int columns, int ranks);

}  // namespace tutti
