// layout.isa: which of the processor's instructions the kernels of each rank use. It changes the
// speed, not the result.
#pragma once

#include <string>
#include <vector>

#include "base/code_path.h"
#include "config/job.h"

namespace tutti {

/// One name for all ranks, or one for each. A name that is none is a fault.
std::vector<Isa> parse_isa(const std::string& text, std::vector<std::string>& faults);

/// What the kernels of a rank run. kPortable is the code for any processor, compiled for fused
/// multiply-adds where this one has them. Throws Error for what this processor cannot run.
CodePath path_of(const LayoutConfig& layout, int64_t rank = 0);
CodePath path_of(Isa isa);
/// The job with layout.isa as one rank has it: models know no ranks.
Job on_rank(Job job, int64_t rank);

/// "layout.isa = "avx512", but this processor has avx2 and portable"; "" if it can run it.
std::string missing_isa(Isa isa, CodePath fastest);

}  // namespace tutti
