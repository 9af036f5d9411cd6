// The entries of table.vocabulary. As in row_kernels.cc each finds the current stream when it is
// called; the losses of single rows are scratch.
#include "cuda/vocabulary.h"

#include "cuda/current_queue.h"
#include "cuda/kernels/loss_kernels.h"

namespace tutti {

template <class A>
void fill_vocabulary(KernelsFor<A>& table) {
  auto& vocabulary = table.vocabulary;
  vocabulary.embed = [](const int64_t* tokens, const float* rows_of_tokens, float* out,
                        int64_t rows, int64_t cols, int64_t first, int64_t count) {
    CurrentQueue queue;
    rows::embed_slice(queue, tokens, rows_of_tokens, out, rows, cols, first, count);
  };

  vocabulary.embed_backward = [](const int64_t* tokens, const A* dout, float* dtable, int64_t rows,
                                 int64_t cols, int64_t first, int64_t count) {
    CurrentQueue queue;
    rows::embed_slice_backward(queue, tokens, stored(dout), dtable, rows, cols, first, count);
  };

  vocabulary.positions = [](const A* x, const float* position, A* out, int64_t rows,
                            int64_t first_row, int64_t length, int64_t cols,
                            const Dropout* dropout) {
    CurrentQueue queue;
    rows::positions(queue, stored(x), position, stored(out), rows, first_row, length, cols,
                    dropout);
  };

  vocabulary.positions_backward = [](const A* dout, A* dx, float* dposition, int64_t rows,
                                     int64_t first_row, int64_t length, int64_t cols,
                                     const Dropout* dropout) {
    CurrentQueue queue;
    rows::positions_backward(queue, stored(dout), stored(dx), dposition, rows, first_row, length,
                             cols, dropout);
  };

  // The loss of slices: each slice leaves three numbers per row, and the slices' numbers are
  // joined.
  vocabulary.statistics = [](const A* logits, const int64_t* targets, float* statistics,
                             int64_t rows, int64_t first, int64_t count) {
    launch_statistics(stored(logits), targets, statistics, rows, first, count,
                      c10::cuda::getCurrentCUDAStream());
  };

  vocabulary.cross_entropy = [](const float* statistics, const int64_t* targets, float* lse,
                                double* result, int64_t rows, int64_t slices) {
    CurrentQueue queue;
    void* const losses = queue.take(rows * sizeof(double));
    launch_joined_cross_entropy(statistics, targets, lse, static_cast<double*>(losses), result,
                                rows, slices, queue.stream);
  };

  vocabulary.cross_entropy_backward = [](const A* logits, const int64_t* targets, const float* lse,
                                         const double* scale, A* dlogits, int64_t rows,
                                         int64_t first, int64_t count) {
    launch_slice_cross_entropy_backward(stored(logits), targets, lse, scale, stored(dlogits), rows,
                                        first, count, c10::cuda::getCurrentCUDAStream());
  };
}

template void fill_vocabulary(KernelsFor<float>&);
template void fill_vocabulary(KernelsFor<c10::BFloat16>&);
template void fill_vocabulary(KernelsFor<c10::Half>&);

}  // namespace tutti
