// Which buffers of its own rank an instruction touches: what generator and checker order
// instructions by.
#pragma once

#include <vector>

#include "plan/ir/program.h"

namespace tutti {

/// Each buffer once. One that an instruction uses up (a partial sum that an exchange adds to,
/// temporaries) counts as written. What it borrows of other ranks is not among them.
struct Touched {
  std::vector<int> reads, writes;
};
Touched touched_by(const Instruction& instruction);

}  // namespace tutti
