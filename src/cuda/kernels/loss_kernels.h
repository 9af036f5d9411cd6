// Launchers of the softmax cross-entropy kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

struct __nv_bfloat16;
struct __half;

namespace tutti {

// A is float, __nv_bfloat16 or __half; arrays are as in tensor/kernels.h. A target outside [0,
// cols) counts as none: nothing outside a row is read.

/// losses: scratch, one per row.
template <class A>
void launch_cross_entropy(const A* logits, const int64_t* targets, float* lse, double* losses,
                          double* result, int64_t rows, int64_t cols, cudaStream_t stream);
template <class A>
void launch_cross_entropy_backward(const A* logits, const int64_t* targets, const float* lse,
                                   const double* scale, A* dlogits, int64_t rows, int64_t cols,
                                   cudaStream_t stream);
/// Both at once; the gradient replaces the logits. losses: scratch, one per row.
template <class A>
void launch_cross_entropy_in_place(A* logits, const int64_t* targets, const double* scale,
                                   double* losses, double* result, int64_t rows, int64_t cols,
                                   cudaStream_t stream);

// For slices of a vocabulary, with the ids [first, first + count). A target that is not negative
// belongs to some slice.

template <class A>
void launch_statistics(const A* logits, const int64_t* targets, float* statistics, int64_t rows,
                       int64_t first, int64_t count, cudaStream_t stream);
/// losses: scratch, one per row.
void launch_joined_cross_entropy(const float* statistics, const int64_t* targets, float* lse,
                                 double* losses, double* result, int64_t rows, int64_t slices,
                                 cudaStream_t stream);
template <class A>
void launch_slice_cross_entropy_backward(const A* logits, const int64_t* targets, const float* lse,
                                         const double* scale, A* dlogits, int64_t rows,
                                         int64_t first, int64_t count, cudaStream_t stream);

}  // namespace tutti
