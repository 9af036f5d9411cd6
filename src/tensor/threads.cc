// The settings of libraries that decide a result's bits, and the digest by which ranks
// compare them.
#include "tensor/threads.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mm.h>

#include <cstdlib>

#include "base/error.h"
#include "base/fp_mode.h"
#include "base/hash.h"
#include "base/philox.h"

namespace tutti {

void prepare_compute_thread(int threads) {
  at::set_num_threads(threads);

  // It comes last, since a library may change the mode while its threads are set up.
  set_fp_mode();
  TUTTI_CHECK(fp_mode_is_set(), "flush-to-zero cannot be set on this thread");
}

std::string golden_digest() {
  // The inputs are keyed draws, so they are equal on all processors; only the products can differ.
  PhiloxKey key{1, Purpose::kTest, 0, 0};
  uint64_t drawn = 0;
  auto random = [&](int64_t rows, int64_t columns) {
    at::Tensor t = at::empty({rows, columns}, at::kFloat);
    float* values = t.data_ptr<float>();
    for (int64_t i = 0; i < rows * columns; ++i) values[i] = philox_uniform(key, drawn++) - 0.5f;
    return t;
  };

  // A matmul and an exponential take different code paths in the libraries, and so do two depths.
  Sha256 hash;
  for (int64_t depth : {32, 200}) {
    at::Tensor product = at::gelu(at::mm(random(48, depth), random(depth, 80)));
    hash.add(std::as_bytes(std::span(product.data_ptr<float>(), product.numel())));
  }
  return hex(hash.finish()).substr(0, 16);
}

void choose_library_isa(CodePath path) {
  const bool wide = path == CodePath::kAvx512;
  ::setenv("MKL_CBWR", wide ? "AVX512" : "AVX2", 1);
  ::setenv("ONEDNN_MAX_CPU_ISA", wide ? "AVX512_CORE" : "AVX2", 1);
  ::setenv("ATEN_CPU_CAPABILITY", wide ? "avx512" : "avx2", 1);
}

}  // namespace tutti
