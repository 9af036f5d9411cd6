// Pipeline schedules: in which order a stage works on the micro-batches of its replica. Pure functions of small
// numbers; what the cells mean in instructions is plan/mesh.cc's business.
//
//   P stages; v chunks a stage (1, but for interleaved: any, and zbv: 2); m micro-batches
//   chunk k of all P*v is on stage k mod P (zbv: k for k < P, 2P-1-k after that)
//
// Backward is one cell, but for zero-bubble and zbv: its input part, and later its weight part. Per chunk, weight parts
// (and whole backwards) come in the order of the micro-batches in every schedule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

enum class CellKind : uint8_t { kForward, kBackward, kInput, kWeight };

struct Cell {
  CellKind kind = CellKind::kForward;
  int chunk = 0;  ///< of all P*v
  int micro = 0;  ///< its number in the replica's sequence
  bool operator==(const Cell&) const = default;
};

/// Chunks a stage has: 1; 2 for zbv; `chunks` for interleaved.
int chunks_of(const std::string& schedule, int chunks);
/// Which stage a chunk is on.
int stage_of(const std::string& schedule, int stages, int chunk);
/// By stage, its cells in order. `schedule`: gpipe | 1f1b | interleaved | zero-bubble | zbv. Free of deadlock under
/// unbuffered sends (tested by running them). Throws nothing: what a schedule cannot do (interleaved with m that is no
/// multiple of P) it does as well as it can.
std::vector<std::vector<Cell>> make_schedule(const std::string& schedule, int stages, int chunks, int micro_batches);

/// The published share of idle time of such a pipeline, where a forward takes 1 and a backward 2 (1 its input part, 1
/// its weight part), between a stage's first and last cell for zero-bubble and zbv.
double bubble_formula(const std::string& schedule, int stages, int chunks, int micro_batches);

/// When each cell begins and ends if a forward takes `forward`, and the two parts of backward take `input` and
/// `weight`; sending takes `hop`. [stage][cell].
struct CellTime {
  double begin = 0, end = 0;
};
struct CellCosts {
  double forward = 1, input = 1, weight = 1, hop = 0;
};
std::vector<std::vector<CellTime>> time_cells(const std::string& schedule, int stages, int chunks,
                                              const std::vector<std::vector<Cell>>& cells, const CellCosts& costs);

}  // namespace tutti
