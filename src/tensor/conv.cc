// The tables of convolution kernels, one per code path, and the sizes of packed weights.
#include "tensor/conv.h"

#include "base/error.h"
#include "base/processor.h"
#include "tensor/cpu/conv_tables.h"

namespace tutti {

namespace {

template <typename... Parts>
ConvKernels filled(Parts... parts) {
  ConvKernels table{};
  (parts(table), ...);
  return table;
}

int64_t strips(int64_t columns) { return (columns + kConvStrip - 1) / kConvStrip; }

}  // namespace

int64_t ConvShape::panels() const { return strips(out) * kConvStrip * in * kernel * kernel; }
int64_t ConvShape::backward_panels() const {
  return strips(in) * kConvStrip * out * kernel * kernel;
}

const ConvKernels& conv_kernels(CodePath path) {
  // Filled once per process; a table that this processor cannot run is only a list of addresses.
#define TUTTI_FILLED(isa)                                                                       \
  filled(isa::fill_conv, isa::fill_conv_weight, isa::fill_conv_passes, isa::fill_conv_backward, \
         isa::fill_pool)
  static const ConvKernels tables[] = TUTTI_TABLE(TUTTI_FILLED);
#undef TUTTI_FILLED
  TUTTI_CHECK(can_run(path), "this processor cannot run the kernels that were asked for");
  return on_path(tables, path);
}

}  // namespace tutti
