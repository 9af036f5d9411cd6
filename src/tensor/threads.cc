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
#include "base/processor.h"

namespace tutti {

void prepare_compute_thread(int threads) {
  at::set_num_threads(threads);

  // It comes last, since a library may change the mode while its threads are set up.
  set_fp_mode();
  TUTTI_CHECK(fp_mode_is_set(), "flush-to-zero cannot be set on this thread");
}

std::string library_digest() {
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

void choose_library_isa() {
  struct Names {
    const char *mkl, *onednn, *aten;
  };
  constexpr Names kNames[] = {{"AVX512", "AVX512_CORE", "avx512"},
                              {"AVX2", "AVX2", "avx2"},
                              {"COMPATIBLE", "SSE41", "default"},
                              {"COMPATIBLE", "SSE41", "default"}};
  const Names& names = on_path(kNames);
  ::setenv("MKL_CBWR", names.mkl, 1);
  ::setenv("ONEDNN_MAX_CPU_ISA", names.onednn, 1);
  ::setenv("ATEN_CPU_CAPABILITY", names.aten, 1);
}

}  // namespace tutti
