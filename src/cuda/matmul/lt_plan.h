// How cuBLASLt multiplies one product: its descriptors, and the algorithm. Used by lt_matmul.cc,
// which keeps a plan per product, and by lt_measure.cc, which looks for faster algorithms.
#pragma once

#include <cublasLt.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/matmul/lt_choices.h"
#include "cuda/matmul/lt_matmul.h"

namespace tutti {

/// Owners of cuBLASLt's objects.
template <class Object, cublasStatus_t (*destroy)(Object)>
struct LtDestroys {
  using pointer = Object;
  void operator()(Object object) const { destroy(object); }
};
template <class Object, cublasStatus_t (*destroy)(Object)>
using LtOwned = std::unique_ptr<Object, LtDestroys<Object, destroy>>;
using LtDescription = LtOwned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using LtLayout = LtOwned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

/// An algorithm that is ready for a product, and the bytes of scratch that it needs.
struct LtReady {
  cublasLtMatmulAlgo_t algorithm;
  size_t scratch;
};

/// A product's descriptors and algorithm. Of the arrays only bias and aux are part of it, and they
/// are set before each use, so two threads must not use a plan at once.
struct LtPlan {
  LtDescription description;
  LtLayout a, b, c;
  std::optional<LtReady> chosen = {};  ///< none: cuBLASLt does not take the product

  /// Puts the product on the thread's current stream, with scratch from ATen's pool.
  cublasStatus_t run(cublasLtHandle_t handle, const LtArrays& arrays, const LtReady& by) const;
};

/// Throws Error where the record of the product names an algorithm that the library does not have.
LtPlan make_lt_plan(const LtProduct& product, cublasLtHandle_t handle);

/// The library's own list for a product, beginning with the one that it expects to be the fastest.
std::vector<LtReady> lt_offered(const LtPlan& plan, cublasLtHandle_t handle);

/// The algorithm of that name; none where the library has no such algorithm for the product.
std::optional<LtReady> lt_by_name(const LtAlgorithm& name, const LtProduct& product,
                                  const LtPlan& plan, cublasLtHandle_t handle);
/// The name of an algorithm, for the records.
LtAlgorithm lt_name(const cublasLtMatmulAlgo_t& algorithm);

/// The name of this GPU, by which the records are found.
std::string lt_gpu();

/// Calls `each` with every product that this process has multiplied.
void for_each_lt_plan(
    const std::function<void(const LtProduct&, const LtPlan&, cublasLtHandle_t)>& each);

void check_lt(cublasStatus_t status, const char* call);

}  // namespace tutti

/// TUTTI_LT_CALL(cublasLtCreate, &handle)
#define TUTTI_LT_CALL(function, ...) ::tutti::check_lt(function(__VA_ARGS__), #function)
