#include "cuda/errors.h"

#include "base/error.h"

namespace tutti {

void cuda_failed(cudaError_t error, const char* call) {
  (void)cudaGetLastError();  // the next call must not find this error again
  throw Error(fmt::format("{}: {} ({})", call, cudaGetErrorString(error), cudaGetErrorName(error)));
}

}  // namespace tutti
