// The tables of kernels, filled once per process for each instruction set and kind of matmul, and
// which of them this processor can run.
#include "tensor/kernels.h"

#include <utility>

#include "base/error.h"
#include "base/processor.h"
#include "tensor/cpu/kernel_tables.h"

namespace tutti {

bool supported(Isa isa) { return isa == Isa::kAvx512 ? has_avx512() : has_avx2(); }

namespace {

// Each *.simd.cc file fills in its own entries of the table.
template <typename... Parts>
Kernels filled(Parts... parts) {
  Kernels table{};
  (parts(table), ...);
  return table;
}

Kernels with_mkl(Kernels table) {
  table.matmul = mkl_matmul();
  return table;
}

}  // namespace

const Kernels& kernels(Isa isa, MatmulKind matmul) {
  // Filling a table only takes addresses, so the one that this processor cannot run does no harm.
  static const Kernels avx2 =
      filled(isa_avx2::fill_matmul, isa_avx2::fill_norm, isa_avx2::fill_activation,
             isa_avx2::fill_rotary, isa_avx2::fill_dropout, isa_avx2::fill_attention,
             isa_avx2::fill_attention_backward, isa_avx2::fill_loss, isa_avx2::fill_vocabulary);
  static const Kernels avx512 = filled(
      isa_avx512::fill_matmul, isa_avx512::fill_norm, isa_avx512::fill_activation,
      isa_avx512::fill_rotary, isa_avx512::fill_dropout, isa_avx512::fill_attention,
      isa_avx512::fill_attention_backward, isa_avx512::fill_loss, isa_avx512::fill_vocabulary);

  static const Kernels avx2_mkl = with_mkl(avx2), avx512_mkl = with_mkl(avx512);
  TUTTI_CHECK(isa != Isa::kAuto && matmul != MatmulKind::kAuto,
              "kernels of a job that is not resolved");
  TUTTI_CHECK(supported(isa), "this processor cannot run the kernels that were asked for");
  if (matmul == MatmulKind::kMkl) return isa == Isa::kAvx512 ? avx512_mkl : avx2_mkl;
  return isa == Isa::kAvx512 ? avx512 : avx2;
}

}  // namespace tutti
