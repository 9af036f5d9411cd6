// Pipeline schedules: in which order a stage works on the micro-batches of its replica. Pure
// functions of small numbers; what the cells mean in instructions is plan/make/rank_program.cc's
// business.
//
//   P stages; v chunks per stage, as the schedule's row says; m micro-batches
//   chunk k of all P*v is on stage k mod P; where chunks return (PipelinePart::returns), on stage k
//   for k < P and 2P-1-k after that
//
// Backward is one cell or, where the schedule splits it, its input part and, later, its weight part
// (B and W in the papers). Per chunk, forwards, weight parts and whole backwards come in the order
// of the micro-batches in every schedule. docs/parallelism.md has a table of what each schedule
// keeps, how long it idles and which m it is made for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/job_parts.h"

namespace tutti {

enum class CellKind : uint8_t { kForward, kBackward, kInput, kWeight };

struct Cell {
  CellKind kind = CellKind::kForward;
  int chunk = 0;  ///< of all P*v
  int micro = 0;  ///< its number in the replica's sequence
  bool operator==(const Cell&) const = default;
};

/// The schedules that there are.
std::vector<std::string> pipeline_schedule_names();
/// The schedule in the first row of config/job_parts.cc, which a single stage runs.
std::string plain_schedule();
/// Whether backward is two cells.
bool splits_backward(const std::string& schedule);
/// Chunks that a stage has: as many as the schedule says, or `chunks` where it leaves them open.
int chunks_of(const std::string& schedule, int chunks);
/// Which stage a chunk is on.
int stage_of(const std::string& schedule, int stages, int chunk);
/// The same for callers that ask about many chunks and look the schedule up once.
int stage_of(const PipelinePart& schedule, int stages, int chunk);
/// The cells of every stage in their order, as published. If there are fewer micro-batches than a
/// schedule wants (docs/parallelism.md), or a number that P does not divide, those that do not
/// exist are left out of the order for the next number that suits.
std::vector<std::vector<Cell>> make_schedule(const std::string& schedule, int stages, int chunks,
                                             int micro_batches);

struct CellTime {
  double begin = 0, end = 0;
};
/// Costs of a forward and of the two parts of a backward.
struct CellCosts {
  double forward = 1, input = 1, weight = 1;
};
double cell_cost(CellKind kind, const CellCosts& costs);
/// What a cell waits for besides the one before it on its stage.
std::vector<Cell> needs_of(const Cell& cell, int all_chunks);
/// When each cell begins and ends, [stage][cell]. `costs` are by chunk, or one that stands for all;
/// sending takes `hop` and holds up nobody but the receiver.
std::vector<std::vector<CellTime>> time_cells(const std::string& schedule, int stages, int chunks,
                                              const std::vector<std::vector<Cell>>& cells,
                                              const std::vector<CellCosts>& costs = {{}},
                                              double hop = 0);

/// An order made to measure for chunks of unequal costs, for which the published one makes stages
/// wait: every stage does what is there, and a weight part when nothing else is. A chunk keeps at
/// most `in_flight` micro-batches; the more it keeps, the less stages wait for each other, or for
/// one that is late. `schedule`: one that splits backward; `costs` are by chunk.
std::vector<std::vector<Cell>> fit_schedule(const std::string& schedule, int stages,
                                            int micro_batches, const std::vector<CellCosts>& costs,
                                            int in_flight);

/// The share of the stages' time in which they are idle. The time is that from the first cell of
/// all to the last or, for zbv, from the first cell of each stage to its last, because the next
/// step's first cells fill in the rest.
double idle_share(const std::string& schedule, const std::vector<std::vector<CellTime>>& times);
/// The published idle share, which holds where the table says so. With fewer micro-batches than
/// zero-bubble and zbv want, it is the exact share of make_schedule.
double bubble_formula(const std::string& schedule, int stages, int chunks, int micro_batches);

}  // namespace tutti
