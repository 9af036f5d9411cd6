// Runs programs on a cost model (plan/search/cost.h), without running anything: when every
// instruction begins and ends, and what that means for the step.
//
//   queues     in order; an instruction enters when the one before it has ended and its events have
//              been signalled
//   meetings   (Reduce, Gather, Exchange, Vote, ...) work begins when all members have entered, and
//              all members end together
//   Send/Recv  work begins when both have entered, and both end together: nothing is buffered
//   cores      everything at work on a host is slowed by CostModel::pace; who waits takes nothing
//
// Who meets whom is found in the programs: instructions with one id and group. So some ranks may
// stand for all (plan/search/roles.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/ir/plan_memory.h"
#include "plan/search/cost.h"

namespace tutti {

struct InstructionTime {
  /// Seconds from the step's start; between `entered` and `begin` the instruction waits for others.
  double entered = 0, begin = 0, end = 0;
};

struct RankSimulation {
  int rank = 0;
  std::vector<std::vector<InstructionTime>> queues;
  /// Seconds between the beginning of compute's first instruction and the end of its last:
  ///   busy     at work
  ///   exposed  with nothing to do while bytes of this rank are on their way (exposed
  ///            communication), or in an instruction on compute that moves bytes
  ///   bubble   with nothing to do at all
  double busy = 0, exposed = 0, bubble = 0;
  std::array<double, kAxes> received{};  ///< bytes
  std::array<double, kAxes> link{};      ///< of these, from each peer of the axis
  MemoryForecast memory;
};

struct Simulation {
  double seconds = 0;
  std::vector<RankSimulation> ranks;  ///< in the order of the programs
  double busy_share() const;          ///< means over the ranks, of the step's seconds
  double exposed_share() const;
  double bubble_share() const;
  int64_t peak_bytes() const;  ///< of the rank that needs most
};

/// `weights`: how many ranks of its host each program stands for; empty: one. Throws Error naming
/// an instruction when the programs wait for each other for ever.
Simulation simulate(std::span<const Program> programs, const CostModel& cost,
                    std::span<const int> weights = {});

}  // namespace tutti
