// Which of cuBLASLt's algorithms is the fastest for a product, as measured on one kind of GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "cuda/matmul/lt_matmul.h"

namespace tutti {

/// An algorithm by the names that cuBLASLt has for its parts (CUBLASLT_ALGO_CONFIG_*).
struct LtAlgorithm {
  int32_t id;
  uint32_t tile, stages;
  int32_t split;       ///< parts into which the sum over k is cut, added in order
  uint32_t reduction;  ///< how these parts are added
  uint32_t swizzle, custom;
  uint16_t inner, cluster;
};

struct LtChoice {
  LtProduct product;
  LtAlgorithm algorithm;
};

/// The records for a GPU and a version of cuBLASLt; empty: there are none.
std::span<const LtChoice> lt_choices(std::string_view gpu, size_t library);

}  // namespace tutti
