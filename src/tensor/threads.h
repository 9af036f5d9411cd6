// What every thread that computes does first, and how a processor shows that it computes like the
// others.
#pragma once

#include <string>

#include "config/enums.h"

namespace tutti {

/// Flush-to-zero on, `threads` intra-op threads for ATen and MKL on this thread, deterministic
/// algorithms.
void prepare_compute_thread(int threads);

/// A digest of a few small matmuls and vector functions: equal on processors that give the same
/// bits.
std::string golden_digest();

/// Sets the variables that choose the code paths of MKL, oneDNN and ATen. Call it first thing in
/// main: the libraries read them once, at their first use. `isa`: that of a
/// resolved job.
void choose_library_isa(Isa isa);

}  // namespace tutti
