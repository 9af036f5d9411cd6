// The memory of all ranks of a mesh on hashes instead of numbers: adding is neither commutative nor
// associative, so two results are equal only if they are the same operations in the same order.
//
//   cell    256 bytes of a buffer, or 64 floats: one hash; reading a cell that holds something else
//           changes all that follows
//   state   what a step begins and ends with: parameters (slot 0) and moments (slot 1), by unit and
//           cell
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "plan/ir/program.h"

namespace tutti::test {

using Cells = std::vector<uint64_t>;
/// A value per unit, slot and cell.
using MeshValues = std::map<std::tuple<int, int, int64_t>, uint64_t>;

inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 32);
}
inline uint64_t add_hashes(uint64_t a, uint64_t b) { return mix(mix(a + 1) * 3 + b); }
template <class... T>
uint64_t hash_of(T... values) {
  uint64_t h = 17;
  ((h = mix(h * 31 + static_cast<uint64_t>(values) + 1)), ...);
  return h;
}

inline constexpr int64_t kCellBytes = 256, kCellFloats = 64;
inline int64_t cells_in(int64_t bytes) { return (bytes + kCellBytes - 1) / kCellBytes; }
inline int64_t first_cell(int64_t floats) { return floats / kCellFloats; }
inline int64_t last_cell(int64_t floats) { return (floats + kCellFloats - 1) / kCellFloats; }

/// Both arguments must outlive it.
class ProgramMemory {
 public:
  ProgramMemory(const Plan& plan, const ModelShape& model, uint64_t seed)
      : plan(plan), model(model), random(seed) {
    for (const Program& program : plan.programs) {
      auto& buffers = cells_.emplace_back();
      for (const Buffer& buffer : program.buffers)
        for (uint64_t& cell : buffers.emplace_back(cells_in(buffer.bytes))) cell = random();
      begin_numbers(program);
      for (size_t b = 0; b < buffers.size(); ++b)
        each_state_cell(program.rank, program.buffers[b],
                        [&](int slot, int64_t cell, int64_t place) {
                          buffers[b].at(place) = hash_of(program.buffers[b].unit, slot, cell);
                        });
    }
  }

  const Plan& plan;
  const ModelShape& model;
  std::mt19937_64 random;

  int ranks() const { return static_cast<int>(cells_.size()); }
  const Buffer& buffer(int rank, int b) const { return plan.programs[rank].buffers.at(b); }
  Cells& at(int rank, int b) { return cells_[rank].at(b); }
  const Cells& at(int rank, int b) const { return cells_[rank].at(b); }

  /// A tensor that begins where its buffer does.
  uint64_t tensor(int rank, int b, int64_t bytes) const {
    uint64_t h = 3;
    for (int64_t c = 0; c < cells_in(bytes); ++c) h = add_hashes(h, at(rank, b).at(c));
    return h;
  }
  void fill(int rank, int b, int64_t bytes, uint64_t h) {
    for (int64_t c = 0; c < cells_in(bytes); ++c) at(rank, b).at(c) = hash_of(h, c);
  }
  void spoil(int rank, int b) {
    if (b < 0) return;
    for (uint64_t& cell : at(rank, b)) cell = random();
  }

  /// The cell of a buffer where float `at` of its unit's gradient space is.
  int64_t place_of(int rank, int b, int64_t at) const {
    const Range held = buffer(rank, b).range;
    return first_cell(at - (held.empty() ? 0 : held.begin));
  }
  /// `count` floats from float `begin` of gradient space on.
  uint64_t floats(int rank, int b, int64_t begin, int64_t count) const {
    const int64_t first = place_of(rank, b, begin);
    uint64_t h = 5;
    for (int64_t c = 0; c < last_cell(count); ++c) h = add_hashes(h, at(rank, b).at(first + c));
    return h;
  }
  uint64_t& window(int rank, int64_t offset) {
    const auto& buffers = plan.programs[rank].buffers;
    for (size_t b = 0; b < buffers.size(); ++b) {
      const int64_t inside = offset - buffers[b].window_offset;
      if (buffers[b].window && inside >= 0 && inside < buffers[b].bytes)
        return cells_[rank][b].at(inside / kCellBytes);
    }
    throw std::out_of_range("no buffer of the window is there");
  }

  /// `problem` names the first place where ranks differ.
  MeshValues state(std::string& problem) const {
    MeshValues all;
    for (int r = 0; r < ranks(); ++r) {
      const auto& buffers = plan.programs[r].buffers;
      for (size_t b = 0; b < buffers.size(); ++b)
        each_state_cell(r, buffers[b], [&](int slot, int64_t cell, int64_t place) {
          const uint64_t value = cells_[r][b].at(place);
          const auto [it, fresh] = all.try_emplace({buffers[b].unit, slot, cell}, value);
          if (!fresh && it->second != value && problem.empty())
            problem =
                fmt::format("'{}' of rank {} differs from another rank's", buffers[b].name, r);
        });
    }
    return all;
  }

 private:
  /// f(slot, cell of the unit, place in the buffer).
  template <class F>
  void each_state_cell(int rank, const Buffer& b, F&& f) const {
    if (b.unit < 0) return;
    if (b.kind == BufferKind::kMoment) {
      const Range range = range_of(plan.ownership[b.unit].moments, rank);
      for (int64_t c = first_cell(range.begin); c < last_cell(range.end); ++c)
        f(1, c, c - first_cell(range.begin));
    }
    if (b.kind != BufferKind::kParameter) return;
    for (const auto& [range, at] : placed_in(b, model.blocks[b.unit].unit_size)) {
      const int64_t shift =
          first_cell(at - (b.range.empty() ? 0 : b.range.begin)) - first_cell(range.begin);
      for (int64_t c = first_cell(range.begin); c < last_cell(range.end); ++c) f(0, c, c + shift);
    }
  }
  /// Losses and squares are added up from nothing.
  void begin_numbers(const Program& program) {
    for (const Queue& queue : program.queues)
      for (const Instruction& i : queue.instructions)
        for (const Operand& operand : i.operands)
          if (operand.role == OperandRole::kLoss || operand.role == OperandRole::kSquares)
            std::fill(at(program.rank, operand.buffer).begin(),
                      at(program.rank, operand.buffer).end(), 0);
  }

  std::vector<std::vector<Cells>> cells_;  // [rank][buffer]
};

}  // namespace tutti::test
