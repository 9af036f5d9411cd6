// The exact reduction of one bucket: from every rank's lane partials to the reduced gradient, readable by every rank.
//
//   N ranks, W lanes; rank r's maximal subtrees are its partials; each is a bucket-sized array at a fixed offset of its
//   arena pieces   what is reduced: result[dst, dst+size) = sum over src (in order) of tree(partials[src, src+size))
//            (src is {dst} but for shared parameters, which have one gradient per user: DESIGN 2.8)
//   slices   who finishes what: slice r of [0, result_size) belongs to rank r
//   1. reduce(): rank r folds slice r of all partials in tree order and writes it over its own first partial (in place)
//   2. gather(): makes every slice readable; where windows reach (shm, inproc) nothing is copied: view() points into
//   the
//      owner's window; elsewhere the bytes travel into this rank's own first partial
//   3. release(): this rank has read what it wanted; a partial may be overwritten only after await_release()
//
// With hosts > 1 (equal ranks per host, each host owning whole subtrees) reduce() is two-level: the ranks of a host
// fold their host's subtrees slice by slice through windows, one partial per subtree leaves the host, the same
// additions. Hosts of unequal size or with scattered lanes reduce by messages between all ranks. Every failure is a
// CommError whose operation is "reduce bucket K" and whose sequence is the step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/fold.h"
#include "grid/grid.h"
#include "net/transport.h"

namespace tutti {

struct Piece {
  int64_t dst = 0, size = 0;
  std::vector<int64_t>
      src;  ///< at least one; src[0] == dst, the others behind the result: in [result_size, partial_size)
};

enum class FoldAt {
  kOwner,
  kRoot
};  ///< layout.fold: slices at their owners ("local") or the whole tree at rank 0 ("root")
enum class ReduceKind { kExact, kRing };

struct ReductionSpec {
  int bucket = 0;  ///< its number in the plan: names it in errors, picks its flags
  int lanes = 1;
  std::vector<Range> owned;  ///< lanes of every rank
  std::vector<std::vector<int64_t>>
      offsets;                ///< [rank][partial]: byte offset of the partial in that rank's arena (window)
  int64_t partial_size = 0;   ///< floats in a partial (result + extra gradients of shared parameters)
  int64_t result_size = 0;    ///< floats in the result
  std::vector<Piece> pieces;  ///< ascending dst, inside [0, result_size)
  std::vector<Range> slices;  ///< by rank, covering [0, result_size), cut on chunk borders
  std::vector<int> hosts;     ///< host of every rank
  FoldAt fold = FoldAt::kOwner;
  ReduceKind kind = ReduceKind::kExact;
};

class Reduction {
 public:
  virtual ~Reduction() = default;
  /// Blocks until slice `rank` is reduced. `step` numbers the rounds from 0. After it, view(rank) is the slice's
  /// values.
  virtual void reduce(uint64_t step, Deadline deadline) = 0;
  virtual void gather(uint64_t step, Deadline deadline) = 0;
  /// May be called from another thread than the rest.
  virtual void release(uint64_t step) = 0;
  /// Blocks until every rank that reads this one's memory has released `step`: before the partials of step + 1 are
  /// written.
  virtual void await_release(uint64_t step, Deadline deadline) = 0;
  /// Where the reduced floats of slice r lie (valid from gather until release). Padding between pieces is not reduced.
  virtual const float* view(int slice) const = 0;
  /// Private memory it holds for messages, beside the arena.
  virtual int64_t scratch_bytes() const { return 0; }
};

/// `arena` is this rank's partials memory: the transport's window where it has one, any memory elsewhere.
std::unique_ptr<Reduction> make_reduction(const ReductionSpec& spec, Transport& transport, std::span<std::byte> arena);

/// Bytes rank `from` sends to rank `to` in one reduce + gather of this bucket (0 where windows reach: those are read,
/// see window_reads). What the plan prints and tests compare with Transport::sent_bytes.
int64_t reduction_bytes(const ReductionSpec& spec, const std::string& transport, int from, int to);

}  // namespace tutti
