// What every computing thread does first, and how a processor shows that it computes like
// the others.
#pragma once

#include <string>

namespace tutti {

/// Turns flush-to-zero on and gives ATen and MKL `threads` intra-op threads, both for the calling
/// thread. Throws Error when flush-to-zero cannot be set.
void prepare_compute_thread(int threads);

/// A digest of a few small matmuls and vector functions of ATen: equal on processors where MKL and
/// ATen give the same bits. Ranks that compute by them compare it before they connect.
std::string library_digest();

/// Sets the environment variables that choose the code paths of MKL, oneDNN and ATen: those of this
/// processor, whatever layout.isa says, which is not to change their bits. Call it before anything
/// computes: the libraries read them once, at their first use.
void choose_library_isa();

}  // namespace tutti
