// The loss's entries of the table: each finds the current stream when it is called, and takes one
// double per row as scratch, since rows are summed by a second kernel.
#include "cuda/cuda_loss.h"

#include "cuda/current_queue.h"
#include "cuda/kernels/loss_kernels.h"

namespace tutti {

template <class A>
void fill_loss(KernelsFor<A>& table) {
  table.cross_entropy = [](const A* logits, const int64_t* targets, float* lse, double* result,
                           int64_t rows, int64_t cols) {
    CurrentQueue queue;
    void* const losses = queue.take(rows * sizeof(double));
    launch_cross_entropy(stored(logits), targets, lse, static_cast<double*>(losses), result, rows,
                         cols, queue.stream);
  };

  table.cross_entropy_backward = [](const A* logits, const int64_t* targets, const float* lse,
                                    const double* scale, A* dlogits, int64_t rows, int64_t cols) {
    launch_cross_entropy_backward(stored(logits), targets, lse, scale, stored(dlogits), rows, cols,
                                  c10::cuda::getCurrentCUDAStream());
  };

  // The fused pass needs no lse outside of itself: the gradient follows in the same kernel.
  table.cross_entropy_in_place = [](A* logits, const int64_t* targets, const double* scale,
                                    double* result, int64_t rows, int64_t cols) {
    CurrentQueue queue;
    void* const losses = queue.take(rows * sizeof(double));
    launch_cross_entropy_in_place(stored(logits), targets, scale, static_cast<double*>(losses),
                                  result, rows, cols, queue.stream);
  };
}

template void fill_loss(KernelsFor<float>&);
template void fill_loss(KernelsFor<c10::BFloat16>&);
template void fill_loss(KernelsFor<c10::Half>&);

}  // namespace tutti
