// The one symbol that libtutti_cuda.so exports: the table of everything that the command needs of
// a GPU.
#include "device/library.h"

#include "cuda/attention/cuda_attention.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_loss.h"
#include "cuda/cuda_state.h"
#include "cuda/matmul/cuda_matmul.h"
#include "cuda/matmul/lt_matmul.h"
#include "cuda/nccl.h"
#include "cuda/row_kernels.h"
#include "cuda/vocabulary.h"

namespace tutti {
namespace {

/// The table of kernels for activations of type A, filled in once by every file that has some.
template <class A>
const KernelsFor<A>* kernels_for() {
  static const KernelsFor<A> kernels = [] {
    KernelsFor<A> table{};
    fill_rows(table);
    fill_matmul(table);
    fill_attention(table);
    fill_loss(table);
    fill_vocabulary(table);
    return table;
  }();
  return &kernels;
}

}  // namespace
}  // namespace tutti

extern "C" __attribute__((visibility("default"))) const tutti::DeviceLibrary*
tutti_device_library() {
  using namespace tutti;
  static const DeviceLibrary library{
      .version = DeviceLibrary::kVersion,
      .count = cuda_device_count,
      .devices = cuda_devices,
      .open = open_cuda,
      .type = at::kCUDA,
      .float32 = kernels_for<float>(),
      .bfloat16 = kernels_for<c10::BFloat16>(),
      .float16 = kernels_for<c10::Half>(),
      .state = cuda_state_kernels(),
      .group_id = nccl_group_id,
      .join = join_nccl,
      .measure_matmuls = measure_lt_products,
  };
  return &library;
}
