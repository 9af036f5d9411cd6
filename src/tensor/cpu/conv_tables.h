// Declares what each conv*.simd.cc and pool.simd.cc file fills into the table of convolution
// kernels, once per instruction set.
#pragma once

#include "base/code_path.h"
#include "tensor/conv.h"

#define TUTTI_CONV_PARTS(isa)                  \
  namespace isa {                              \
  void fill_conv(ConvKernels& table);          \
  void fill_conv_weight(ConvKernels& table);   \
  void fill_conv_passes(ConvKernels& table);   \
  void fill_conv_backward(ConvKernels& table); \
  void fill_pool(ConvKernels& table);          \
  }

namespace tutti {
TUTTI_ON_EACH_PATH(TUTTI_CONV_PARTS)
}  // namespace tutti
