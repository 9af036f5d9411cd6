// The tables of kernels, filled once per process for each instruction set and kind of matmul, and
// which of them this processor can run.
#include "tensor/kernels.h"

#include <utility>

#include "base/error.h"
#include "base/processor.h"
#include "tensor/cpu/kernel_tables.h"

namespace tutti {

namespace {

// Each *.simd.cc file fills in its own entries of the table.
template <typename... Parts>
Kernels filled(Parts... parts) {
  Kernels table{};
  (parts(table), ...);
  return table;
}

/// The tables of all code paths. Filling one only takes addresses, so those that this processor
/// cannot run do no harm.
struct Tables {
#define TUTTI_FILLED(isa)                                                                        \
  filled(isa::fill_matmul, isa::fill_norm, isa::fill_batch_norm, isa::fill_activation,           \
         isa::fill_rotary, isa::fill_dropout, isa::fill_attention, isa::fill_attention_backward, \
         isa::fill_loss, isa::fill_vocabulary)
  Kernels own[4] = TUTTI_TABLE(TUTTI_FILLED), mkl[4];
#undef TUTTI_FILLED

  Tables() {
    for (const CodePath path : kCodePaths) {
      const auto i = static_cast<size_t>(path);
      mkl[i] = own[i];
      mkl[i].matmul = mkl_matmul();
    }
  }
};

}  // namespace

const Kernels& kernels(CodePath path, MatmulKind matmul) {
  static const Tables tables;
  TUTTI_CHECK(can_run(path), "this processor cannot run the kernels that were asked for");
  return on_path(matmul == MatmulKind::kMkl ? tables.mkl : tables.own, path);
}

}  // namespace tutti
