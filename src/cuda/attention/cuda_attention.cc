// Chooses between cuDNN and the own kernels, with the bias before them and its gradient after them.
#include "cuda/attention/cuda_attention.h"

#include "base/error.h"
#include "cuda/attention/cudnn_attention.h"
#include "cuda/current_queue.h"
#include "cuda/kernels/attention_kernels.h"

namespace tutti {

namespace {

void check_limits(const AttentionShape& shape) {
  if (shape.dim > kLargestHead)
    throw Error(fmt::format("attention on a GPU takes heads of at most {} elements, not {}",
                            kLargestHead, shape.dim));
  if (shape.batch > kMostSamples || shape.heads > kMostSamples)
    throw Error(
        fmt::format("attention on a GPU takes at most {} samples and heads at once, not {} and {}",
                    kMostSamples, shape.batch, shape.heads));
}

bool empty(const AttentionShape& shape) {
  return shape.batch == 0 || shape.length == 0 || shape.heads == 0 || shape.dim == 0;
}

template <class A>
void attention(A* qkv, const float* bias, A* out, float* lse, float*, const AttentionShape& shape) {
  if (empty(shape)) return;
  check_limits(shape);

  // The bias stays in qkv, since backward reads q, k and v with it.
  CurrentQueue queue;
  if (bias) rows::add_bias(queue, stored(qkv), bias, shape.batch * shape.length, shape.columns());

  constexpr at::ScalarType type = c10::CppTypeToScalarType<A>::value;
  if (cudnn_attends(type, shape)) return cudnn_attention(type, qkv, out, lse, shape);
  launch_attention(stored(qkv), stored(out), lse, shape, queue.stream);
}

template <class A>
void attention_backward(const A* dout, const A* qkv, const A* out, const float* lse, A* dqkv,
                        float* dbias, float*, const AttentionShape& shape) {
  CurrentQueue queue;
  constexpr at::ScalarType type = c10::CppTypeToScalarType<A>::value;
  if (!empty(shape)) {
    check_limits(shape);
    if (cudnn_attends(type, shape)) {
      cudnn_attention_backward(type, dout, qkv, out, lse, dqkv, shape);
    } else {
      // delta: one float per head and query.
      void* const delta = queue.take(shape.batch * shape.heads * shape.length * sizeof(float));
      launch_attention_backward(stored(dout), stored(qkv), stored(out), lse, stored(dqkv),
                                static_cast<float*>(delta), shape, queue.stream);
    }
  }
  // Without samples dbias is written all the same, as zeros.
  if (dbias)
    rows::column_sums(queue, stored<A>(dqkv), dbias, shape.batch * shape.length, shape.columns());
}

}  // namespace

template <class A>
void fill_attention(KernelsFor<A>& table) {
  table.attention = attention<A>;
  table.attention_backward = attention_backward<A>;
  table.attention_work = [](const AttentionShape&) -> int64_t { return 0; };
}

template void fill_attention(KernelsFor<float>&);
template void fill_attention(KernelsFor<c10::BFloat16>&);
template void fill_attention(KernelsFor<c10::Half>&);

}  // namespace tutti
