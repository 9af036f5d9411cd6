// MKL's sgemm with the row-major interface. A row-major product is the column-major product of the
// transposes, so the operands swap places. sgemm_ is called directly, not through at::mm_out, to
// spare the dispatcher (microseconds per call, which weigh at small shapes); both give the same
// bits.
#include "tensor/matmul.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

extern "C" void sgemm_(const char* transa, const char* transb, const int* m, const int* n,
                       const int* k, const float* alpha, const float* a, const int* lda,
                       const float* b, const int* ldb, const float* beta, float* c, const int* ldc);

namespace tutti {

namespace {

void column_major(char transa, char transb, int64_t m, int64_t n, int64_t k, const float* a,
                  int64_t lda, const float* b, int64_t ldb, float* c) {
  constexpr int64_t limit = std::numeric_limits<int>::max();
  TUTTI_CHECK(m <= limit && n <= limit && k <= limit, "a matmul of {} x {} x {} is too large", m, n,
              k);
  const int im = static_cast<int>(m), in = static_cast<int>(n), ik = static_cast<int>(k);
  // sgemm refuses a leading dimension of 0 even where it reads nothing.
  const int ilda = std::max(1, static_cast<int>(lda)), ildb = std::max(1, static_cast<int>(ldb)),
            ildc = std::max(1, im);
  const float one = 1, zero = 0;
  sgemm_(&transa, &transb, &im, &in, &ik, &one, a, &ilda, b, &ildb, &zero, c, &ildc);
}

void nt(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k, float*) {
  column_major('T', 'N', n, m, k, b, k, a, k, c);
}
void nn(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k, float*) {
  column_major('N', 'N', n, m, k, b, n, a, k, c);
}
void tn(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k, float*) {
  column_major('N', 'T', n, m, k, b, n, a, m, c);
}
int64_t no_work(int64_t, int64_t, int64_t) { return 0; }

}  // namespace

Matmul mkl_matmul() { return {nt, nn, tn, no_work, nt, nn}; }

}  // namespace tutti
