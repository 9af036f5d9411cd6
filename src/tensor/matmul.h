// Row-major float32 matmuls on one thread: the three products of a linear layer, by MKL or by
// Tutti's own kernels. A table of kernels (kernels.h) holds the ones that were asked for.
//
// Both promise that results are written whole (beta = 0) and that the same shape gives the same
// bits. Any size may be 0: a product over k = 0 is all zeros. c overlaps nothing else.
//
//   own  An element is one chain of FMAs in the order of k, so its bits depend neither on the other
//        rows and columns nor on the instruction set.
//   mkl  From 16 rows on, a row's bits do not depend on how many rows are computed together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace tutti {

/// Products of arrays of A (float, or a 16-bit type on a GPU); the gradient of a weight is float32
/// for every A.
template <class A>
struct MatmulFor {
  /// work: at least work(m, n, k) floats of scratch, contents undefined before and after.
  template <class C>
  using Product = void (*)(const A* a, const A* b, C* c, int64_t m, int64_t n, int64_t k,
                           float* work);
  /// c [m, n] = a [m, k] * b [n, k]^T: a linear layer's forward, with its weight as b
  Product<A> nt;
  Product<A> nn;      ///< c [m, n] = a [m, k] * b [k, n]: the gradient of its input
  Product<float> tn;  ///< c [m, n] = a [k, m]^T * b [k, n]: the gradient of its weight
  int64_t (*work)(int64_t m, int64_t n, int64_t k);
  /// nt and nn with float32 results, for the partial sums of a column. For A = float they are nt
  /// and nn.
  Product<float> nt_sums, nn_sums;

  /// Floats of scratch for any of the three products of a layer.
  int64_t layer_work(int64_t rows, int64_t in, int64_t out) const {
    return std::max({work(rows, out, in), work(rows, in, out), work(out, in, rows)});
  }
};
using Matmul = MatmulFor<float>;

/// MKL's sgemm, which libtorch_cpu exports. Needs no scratch.
Matmul mkl_matmul();

}  // namespace tutti
