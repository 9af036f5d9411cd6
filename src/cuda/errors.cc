// The message of a failed CUDA call, formatted apart from the kernels' files.
#include "cuda/errors.h"

#include "base/error.h"

namespace tutti {

void cuda_failed(cudaError_t error, const char* call) {
  (void)cudaGetLastError();  // so that the next call does not find this error again
  throw Error(fmt::format("{}: {} ({})", call, cudaGetErrorString(error), cudaGetErrorName(error)));
}

}  // namespace tutti
