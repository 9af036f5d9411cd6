// The logarithms of probabilities, for losses that need all of them (model/loss/class_loss.h). Rows
// are dense float32. The bits are the same on every instruction set, of which the fastest is taken.
#pragma once

#include <cstdint>

#include "base/code_path.h"

namespace tutti {

/// log_p = x / temperature - log(sum over the row of exp(x / temperature))
void log_softmax(const float* x, float temperature, float* log_p, int64_t rows, int64_t cols);
/// dx = g - exp(log_p) (sum over the row of g): the gradient of x at temperature 1, where g is that
/// of log_p. dx may be g.
void log_softmax_backward(const float* g, const float* log_p, float* dx, int64_t rows,
                          int64_t cols);

/// The same on one code path, for tests that compare them.
struct LogSoftmax {
  void (*forward)(const float* x, float temperature, float* log_p, int64_t rows, int64_t cols);
  void (*backward)(const float* g, const float* log_p, float* dx, int64_t rows, int64_t cols);
};
#define TUTTI_LOG_SOFTMAX(isa)         \
  namespace isa {                      \
  extern const LogSoftmax log_softmax; \
  }
TUTTI_ON_EACH_PATH(TUTTI_LOG_SOFTMAX)
#undef TUTTI_LOG_SOFTMAX

}  // namespace tutti
