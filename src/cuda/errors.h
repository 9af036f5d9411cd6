// A failed call of the CUDA runtime becomes an Error that names the call and the reason. Light
// enough for kernels' files: no formatting here.
#pragma once

#include <cuda_runtime_api.h>

namespace tutti {

/// Throws Error: "cudaEventQuery: an illegal memory access was encountered
/// (cudaErrorIllegalAddress)".
[[noreturn]] void cuda_failed(cudaError_t error, const char* call);

inline void check_cuda(cudaError_t error, const char* call) {
  if (error != cudaSuccess) cuda_failed(error, call);
}

/// After a kernel's launch; does not wait for it. `kernel` names it in the message.
inline void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

}  // namespace tutti

/// TUTTI_CUDA_CALL(cudaEventRecord, event, stream)
#define TUTTI_CUDA_CALL(function, ...) ::tutti::check_cuda(function(__VA_ARGS__), #function)
