#include "tensor/log_softmax.h"

#include "base/processor.h"

namespace tutti {

namespace {

const LogSoftmax& fastest() {
#define TUTTI_LOG_SOFTMAX(isa) &isa::log_softmax
  static constexpr const LogSoftmax* kAll[] = TUTTI_TABLE(TUTTI_LOG_SOFTMAX);
#undef TUTTI_LOG_SOFTMAX
  return *on_path(kAll);
}

}  // namespace

void log_softmax(const float* x, float temperature, float* log_p, int64_t rows, int64_t cols) {
  fastest().forward(x, temperature, log_p, rows, cols);
}

void log_softmax_backward(const float* g, const float* log_p, float* dx, int64_t rows,
                          int64_t cols) {
  fastest().backward(g, log_p, dx, rows, cols);
}

}  // namespace tutti
