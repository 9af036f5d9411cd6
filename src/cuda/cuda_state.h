// The state kernels (device/state_kernels.h) for NVIDIA GPUs. Each puts its work on the stream and
// returns; a launch that the runtime refuses is thrown as Error.
#pragma once

#include "device/state_kernels.h"

namespace tutti {

/// The whole table.
StateKernels cuda_state_kernels();

// These are in kernels/state.cu. cuda_state.cc has checked the arguments of fold and update before.
inline constexpr int kMaxFoldTerms = 512;
void launch_fold(Stream stream, float* out, std::span<const float* const> terms,
                 std::span<const FoldStep> order, int64_t n);
void launch_add_into(Stream stream, float* a, const float* b, int64_t n);
void launch_chunk_squares(Stream stream, const float* x, const StateChunk* chunks, int64_t count,
                          double* votes);
void launch_commit(Stream stream, const double* votes, const VoteLayout& layout,
                   const StepInputs* inputs, StepOutcome* outcome);
void launch_cast(Stream stream, const float* from, void* to, int64_t n, Precision precision);
// This one is in kernels/update.cu.
void launch_update(Stream stream, const UpdateArguments& arguments);

}  // namespace tutti
