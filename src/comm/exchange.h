// Exchanges between the columns of a model (Exchange in plan/ir/shape.h), over the ranks of the
// tensor axis: the all-gather and the reduce-scatter of tensor and sequence parallelism.
//
//   S columns, T ranks; member t has the columns lanes_of(t, T, S)
//   gather    every member ends with the parts of all columns, in column order
//   scatter   every column c ends with the c-th of S equal parts of the sum of all columns' float32
//             arrays, over the tree of S leaves: the same additions for every T. A member sends
//             each other member one partial per maximal subtree of its columns.
//
// Every failure is a CommError that names the exchange by its id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "grid/grid.h"
#include "net/transport.h"

namespace tutti {

/// The exchange of one instruction. With one rank nothing is sent.
class ColumnExchange {
 public:
  /// `ranks`: the members, by transport rank, in tensor order. `id` tells exchanges apart: it is
  /// the operation of their tags.
  ColumnExchange(uint32_t id, std::vector<int> ranks, int columns, Transport& transport);

  /// parts: the bytes of each of my columns (equal sizes); whole: those of all columns. A part may
  /// be where it belongs in `whole` already. `begun` is called once all that this rank sends is
  /// under way, before it first waits for another.
  void gather(std::span<const std::byte* const> parts, size_t part_bytes, std::byte* whole,
              uint64_t sequence, const Patience& patience, const std::function<void()>& begun = {});
  /// sums: the partial sums of my columns, `floats` each (scratch after it). parts: `floats` / S
  /// each, what my columns end with, apart from the sums. `scratch`: at least scratch_bytes(), for
  /// partials that arrive; exchanges that never run at the same time may share it.
  void scatter(std::span<float* const> sums, int64_t floats, std::span<float* const> parts,
               uint64_t sequence, const Patience& patience, std::span<std::byte> scratch,
               const std::function<void()>& begun = {});
  /// Bytes that are enough for every member.
  static int64_t scratch_bytes(int columns, int ranks, int64_t floats);

 private:
  int members() const { return static_cast<int>(ranks_.size()); }
  Range columns_of(int member) const { return lanes_of(member, members(), columns_); }

  uint32_t id_;
  std::vector<int> ranks_;
  int columns_;
  Transport& transport_;
  int me_;  ///< my place among the members
};

}  // namespace tutti
