// What src/cuda/kernels offers to the host's code: one function for each elementwise or row-wise
// kernel of the table (tensor/kernels.h, which says what they compute). Each puts its work on a
// stream and returns. A is float, __nv_bfloat16 or __half. Pointers are to the device's memory,
// except for the shapes and keys, which are read before the call returns.
//
// Sums over rows have two stages: the rows are cut into chunks whose number depends on the shape
// and A alone, each chunk leaves its float32 sums in scratch, and a second kernel adds these in
// order. No result depends on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "tensor/kernels.h"

struct __nv_bfloat16;
struct __half;

namespace tutti::rows {

/// A stream, and scratch on the device that stays valid for what the call that took it puts on
/// the stream.
class Queue {
 public:
  explicit Queue(cudaStream_t its_stream) : stream(its_stream) {}
  virtual ~Queue() = default;
  /// Aligned to at least 256 bytes, not zeroed.
  virtual void* take(size_t bytes) = 0;

  const cudaStream_t stream;
};

template <class A>
void layer_norm(Queue& queue, const A* x, const float* gamma, const float* beta, A* y, float* mean,
                float* rstd, int64_t rows, int64_t cols, float eps);
template <class A>
void rms_norm(Queue& queue, const A* x, const float* gamma, A* y, float* rstd, int64_t rows,
              int64_t cols, float eps);
template <class A>
void layer_norm_backward(Queue& queue, const A* dy, const A* x, const float* mean,
                         const float* rstd, const float* gamma, const A* residual, A* dx,
                         float* dgamma, float* dbeta, int64_t rows, int64_t cols);
template <class A>
void rms_norm_backward(Queue& queue, const A* dy, const A* x, const float* rstd, const float* gamma,
                       const A* residual, A* dx, float* dgamma, int64_t rows, int64_t cols);

template <class A>
void add_bias(Queue& queue, A* y, const float* bias, int64_t rows, int64_t cols);
template <class A>
void column_sums(Queue& queue, const A* x, float* sums, int64_t rows, int64_t cols);

template <class A>
void bias_residual(Queue& queue, const A* y, const float* bias, const A* x, A* out, int64_t rows,
                   int64_t cols, const Dropout* dropout);
template <class A>
void dropout_backward(Queue& queue, const A* dy, A* out, float* sums, int64_t rows, int64_t cols,
                      const Dropout* dropout);

/// Leaves h + bias in h.
template <class A>
void bias_activation(Queue& queue, A* h, const float* bias, A* g, int64_t rows, int64_t cols,
                     Activation kind);
template <class A>
void activation_backward(Queue& queue, const A* dg, const A* left, A* dh, float* dbias,
                         int64_t rows, int64_t cols, Activation kind);
/// Leaves h + bias in h.
template <class A>
void bias_swiglu(Queue& queue, A* h, const float* bias, A* g, int64_t rows, int64_t cols);
template <class A>
void swiglu_backward(Queue& queue, const A* dg, const A* left, A* dh, float* dbias, int64_t rows,
                     int64_t cols);

template <class A>
void rotary(Queue& queue, A* x, const float* bias, const float* table, const RotaryShape& shape);
template <class A>
void rotary_backward(Queue& queue, A* dx, const float* table, float* dbias,
                     const RotaryShape& shape);

template <class A>
void embed(Queue& queue, const int64_t* tokens, const float* token, const float* position, A* out,
           int64_t rows, int64_t length, int64_t cols, const Dropout* dropout);
/// dtoken may be null, as dposition may. rows and vocab are below 2^31.
template <class A>
void embed_backward(Queue& queue, const int64_t* tokens, const A* dout, float* dtoken,
                    float* dposition, int64_t rows, int64_t length, int64_t vocab, int64_t cols,
                    const Dropout* dropout);

/// embed, embed_backward, positions and positions_backward of VocabularyKernelsFor.
void embed_slice(Queue& queue, const int64_t* tokens, const float* table, float* out, int64_t rows,
                 int64_t cols, int64_t first, int64_t count);
template <class A>
void embed_slice_backward(Queue& queue, const int64_t* tokens, const A* dout, float* dtable,
                          int64_t rows, int64_t cols, int64_t first, int64_t count);
template <class A>
void positions(Queue& queue, const A* x, const float* position, A* out, int64_t rows,
               int64_t first_row, int64_t length, int64_t cols, const Dropout* dropout);
template <class A>
void positions_backward(Queue& queue, const A* dout, A* dx, float* dposition, int64_t rows,
                        int64_t first_row, int64_t length, int64_t cols, const Dropout* dropout);

}  // namespace tutti::rows
