// 16-bit operands go to cuBLASLt (lt_matmul.h), and what it does not take goes to ATen. For ATen
// matrices are views of the caller's memory: a transposed operand is a view with swapped strides,
// which cuBLAS reads in place. The views never meet autograd: the guard sends each product straight
// to ATen's CUDA kernel.
#include "cuda/matmul/cuda_matmul.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <array>
#include <type_traits>

#include "cuda/errors.h"
#include "cuda/matmul/lt_matmul.h"

namespace tutti {

namespace {

/// A view of rows x cols; if `transposed`, the memory holds cols x rows.
template <class T>
at::Tensor matrix(const T* data, int64_t rows, int64_t cols, bool transposed = false) {
  const at::Device device(at::kCUDA, c10::cuda::current_device());
  const std::array<int64_t, 2> sizes{rows, cols},
      strides{transposed ? 1 : cols, transposed ? rows : 1};
  return at::for_blob(const_cast<T*>(data), sizes)
      .strides(at::IntArrayRef(strides))
      .options(at::TensorOptions().device(device).dtype(c10::CppTypeToScalarType<T>::value))
      .target_device(device)
      .make_tensor();
}

/// The key of a product of A's into C.
template <class A, class C>
constexpr LtProduct lt_product(bool a_transposed, bool b_transposed, int64_t m, int64_t n,
                               int64_t k, LtEpilogue epilogue = LtEpilogue::kNone,
                               bool residual = false) {
  return {c10::CppTypeToScalarType<A>::value,
          c10::CppTypeToScalarType<C>::value,
          a_transposed,
          b_transposed,
          m,
          n,
          k,
          epilogue,
          residual};
}

template <class A, class C>
void product(const A* a, bool a_transposed, const A* b, bool b_transposed, C* c, int64_t m,
             int64_t n, int64_t k) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    TUTTI_CUDA_CALL(cudaMemsetAsync, c, 0, m * n * sizeof(C), c10::cuda::getCurrentCUDAStream());
    return;
  }
  if (lt_multiply(lt_product<A, C>(a_transposed, b_transposed, m, n, k), {a, b, c})) return;

  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor out = matrix(c, m, n);
  const at::Tensor left = matrix(a, m, k, a_transposed), right = matrix(b, k, n, b_transposed);

  // A and C differ for sums in float32 of 16-bit operands, which mm_out takes as a type of its own.
  if constexpr (std::is_same_v<A, float>) {
    const at::NoTF32Guard full_precision;
    at::mm_out(out, left, right);
  } else if constexpr (std::is_same_v<A, C>) {
    at::mm_out(out, left, right);
  } else {
    at::mm_out(out, left, right, c10::CppTypeToScalarType<C>::value);
  }
}

template <class A>
bool linear(const A* x, const A* weight, const A* bias, const A* residual, A* y, int64_t rows,
            int64_t out, int64_t in) {
  const LtEpilogue epilogue = bias != nullptr ? LtEpilogue::kBias : LtEpilogue::kNone;
  return lt_multiply(lt_product<A, A>(false, true, rows, out, in, epilogue, residual != nullptr),
                     {x, weight, y, bias, residual});
}

/// cuBLASLt has only GPT-2's approximation of GELU, and only with a bias.
template <class A>
bool linear_activation(const A* x, const A* weight, const A* bias, A* left, A* active, int64_t rows,
                       int64_t out, int64_t in, Activation kind) {
  if (kind != Activation::kGeluTanh || bias == nullptr) return false;
  return lt_multiply(lt_product<A, A>(false, true, rows, out, in, LtEpilogue::kBiasGelu),
                     {x, weight, active, bias, nullptr, left});
}

template <class A>
bool linear_activation_backward(const A* dy, const A* weight, const A* left, A* dleft, int64_t rows,
                                int64_t out, int64_t in, Activation kind) {
  if (kind != Activation::kGeluTanh) return false;
  return lt_multiply(lt_product<A, A>(false, false, rows, in, out, LtEpilogue::kGeluGradient),
                     {dy, weight, dleft, nullptr, nullptr, const_cast<A*>(left)});
}

}  // namespace

template <class A>
void fill_matmul(KernelsFor<A>& table) {
  table.matmul.nt = [](const A* a, const A* b, A* c, int64_t m, int64_t n, int64_t k, float*) {
    product(a, false, b, true, c, m, n, k);
  };
  table.matmul.nn = [](const A* a, const A* b, A* c, int64_t m, int64_t n, int64_t k, float*) {
    product(a, false, b, false, c, m, n, k);
  };
  table.matmul.tn = [](const A* a, const A* b, float* c, int64_t m, int64_t n, int64_t k, float*) {
    product(a, true, b, false, c, m, n, k);
  };

  // The same products with float32 results: the type of c is all that differs.
  table.matmul.nt_sums = [](const A* a, const A* b, float* c, int64_t m, int64_t n, int64_t k,
                            float*) { product(a, false, b, true, c, m, n, k); };
  table.matmul.nn_sums = [](const A* a, const A* b, float* c, int64_t m, int64_t n, int64_t k,
                            float*) { product(a, false, b, false, c, m, n, k); };

  table.matmul.work = [](int64_t, int64_t, int64_t) -> int64_t { return 0; };
  table.fused = {linear<A>, linear_activation<A>, linear_activation_backward<A>};
}

template void fill_matmul(KernelsFor<float>&);
template void fill_matmul(KernelsFor<c10::BFloat16>&);
template void fill_matmul(KernelsFor<c10::Half>&);

}  // namespace tutti
