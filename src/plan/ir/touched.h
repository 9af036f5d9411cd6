// Which buffers of its own rank an instruction touches: the generator and the checker order
// instructions by this.
#pragma once

#include <vector>

#include "plan/ir/program.h"

namespace tutti {

/// Each list has a buffer once. One that an instruction uses up (a partial sum that an exchange
/// adds to, temporaries) counts as written. What is borrowed from other ranks is not among them.
struct Touched {
  std::vector<int> reads, writes;
};
Touched touched_by(const Instruction& instruction);

}  // namespace tutti
