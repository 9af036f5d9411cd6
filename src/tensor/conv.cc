// The two tables of convolution kernels, one per instruction set, and the sizes of packed weights.
#include "tensor/conv.h"

#include "base/error.h"
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

const ConvKernels& conv_kernels(Isa isa) {
  // Filled once per process; a table that this processor cannot run is only a list of addresses.
  static const ConvKernels avx2 =
      filled(isa_avx2::fill_conv, isa_avx2::fill_conv_weight, isa_avx2::fill_conv_passes,
             isa_avx2::fill_conv_backward, isa_avx2::fill_pool);
  static const ConvKernels avx512 =
      filled(isa_avx512::fill_conv, isa_avx512::fill_conv_weight, isa_avx512::fill_conv_passes,
             isa_avx512::fill_conv_backward, isa_avx512::fill_pool);

  TUTTI_CHECK(supported(isa), "this processor cannot run the kernels that were asked for");
  return isa == Isa::kAvx512 ? avx512 : avx2;
}

}  // namespace tutti
