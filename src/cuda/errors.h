// A failed call of the CUDA runtime becomes an Error that names the call and the reason. It is
// light enough for the kernels' files: nothing is formatted here.
#pragma once

#include <cuda_runtime_api.h>

namespace tutti {

/// Throws Error, such as "cudaEventQuery: an illegal memory access was encountered
/// (cudaErrorIllegalAddress)".
[[noreturn]] void cuda_failed(cudaError_t error, const char* call);

inline void check_cuda(cudaError_t error, const char* call) {
  if (error != cudaSuccess) cuda_failed(error, call);
}

/// To be called after a kernel's launch; it does not wait for the kernel. `kernel` names it in
/// the message.
inline void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

}  // namespace tutti

/// TUTTI_CUDA_CALL(cudaEventRecord, event, stream)
#define TUTTI_CUDA_CALL(function, ...) ::tutti::check_cuda(function(__VA_ARGS__), #function)
