// Matmuls of 16-bit operands by cuBLASLt itself, for two things that ATen does not offer: an
// algorithm that was chosen by measurement, and the work next to a product (bias, residual, GELU
// and its derivative) done while the result is still in registers.
#pragma once

#include <c10/core/ScalarType.h>

#include <compare>
#include <cstdint>
#include <string>

namespace tutti {

/// Arrays and rows must begin at multiples of this many bytes.
constexpr int64_t kLtBorder = 16;

/// What happens to a product before it is written.
enum class LtEpilogue : uint8_t {
  kNone,
  kBias,          ///< c = a b + bias
  kBiasGelu,      ///< aux = a b + bias, c = gelu(aux), in GPT-2's approximation by tanh
  kGeluGradient,  ///< c = (a b) gelu'(aux)
};

/// c [m, n] = a [m, k] b [k, n], all row-major. The memory of a transposed operand holds the
/// transpose. This is the key of a plan: all that the choice of an algorithm depends on.
struct LtProduct {
  at::ScalarType in, out;
  bool a_transposed, b_transposed;
  int64_t m, n, k;
  LtEpilogue epilogue = LtEpilogue::kNone;
  bool residual = false;  ///< added to the product in float32, before it is rounded

  auto operator<=>(const LtProduct&) const = default;
};

struct LtArrays {
  const void *a, *b;
  void* c;
  const void* bias = nullptr;      ///< [n], of type `out`
  const void* residual = nullptr;  ///< [m, n], of type `out`
  void* aux = nullptr;             ///< [m, n], of type `out`
};

/// Puts the product on the thread's current stream, with scratch from ATen's pool. Returns false,
/// and has done nothing, where cuBLASLt has no algorithm for it: operands that are not of 16 bits,
/// rows or arrays that do not begin on borders of 16 bytes, or nothing to multiply. The algorithm
/// is a function of the product, the kind of GPU and the library's version: the one that
/// lt_choices.h names, else the library's first choice. Algorithms that would add partial sums in
/// an order that is not fixed are never taken. The first call for a product must not be captured.
bool lt_multiply(const LtProduct& product, const LtArrays& arrays);

/// Times the algorithms of every product that this process has multiplied, on random values, and
/// returns the rows that lt_choices.cc should have for this GPU. Waits for the device.
std::string measure_lt_products();

}  // namespace tutti
