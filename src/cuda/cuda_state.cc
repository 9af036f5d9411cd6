// The table of state kernels. Arguments are checked here and cases without work end here, so that
// the kernels' file needs neither.
#include "cuda/cuda_state.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "cuda/errors.h"

namespace tutti {
namespace {

void fold(Stream stream, float* out, std::span<const float* const> terms,
          std::span<const FoldStep> order, int64_t n) {
  TUTTI_CHECK(!terms.empty() && order.size() + 1 == terms.size(),
              "a fold of {} terms by {} additions", terms.size(), order.size());
  if (n == 0) return;
  if (terms.size() == 1) {
    // One term is a copy, or nothing.
    if (out == terms[0]) return;
    TUTTI_CUDA_CALL(cudaMemcpyAsync, out, terms[0], static_cast<size_t>(n) * sizeof(float),
                    cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream.handle));
    return;
  }

  // The terms travel as the kernel's arguments, whose size is limited. A user can cause this, so it
  // is an Error and not a check.
  if (terms.size() > kMaxFoldTerms) {
    throw Error(fmt::format(
        "a GPU sums at most {} partial gradients at once, {} are wanted: use fewer lanes",
        kMaxFoldTerms, terms.size()));
  }

  // The order is data of a plan; a kernel that read a term that is not there would fault the
  // device.
  const int count = static_cast<int>(terms.size());
  for (const FoldStep& step : order) {
    TUTTI_CHECK(step.left >= 0 && step.left < count && step.right >= 0 && step.right < count &&
                    step.left != step.right,
                "an addition of terms {} and {} of {}", step.left, step.right, count);
  }
  launch_fold(stream, out, terms, order, n);
}

void update(Stream stream, const UpdateArguments& arguments) {
  if (arguments.chunk_count == 0) return;
  TUTTI_CHECK((arguments.low == nullptr) == (arguments.precision == Precision::kFloat32),
              "a copy in low precision goes with a precision that is one");
  TUTTI_CHECK(arguments.kind != UpdateKind::kLamb ||
                  (arguments.chunk_norms != nullptr && arguments.trust != nullptr &&
                   arguments.parameter_chunks != nullptr),
              "lamb without its scratch");
  launch_update(stream, arguments);
}

}  // namespace

StateKernels cuda_state_kernels() {
  return {
      .fold = fold,
      .add_into = launch_add_into,
      .chunk_squares = launch_chunk_squares,
      .commit = launch_commit,
      .update = update,
      .cast = launch_cast,
  };
}

}  // namespace tutti
