// The picture of a simulated step: for every rank what it computes, numbered by micro-batch, and
// beneath it what is on its way. It looks like the pictures of real steps that exec/trace.h makes.
#pragma once

#include <span>
#include <string>

#include "plan/search/simulate.h"

namespace tutti {

/// `simulation` is that of `programs`.
std::string timeline_svg(std::span<const Program> programs, const Simulation& simulation,
                         const std::string& title);

}  // namespace tutti
