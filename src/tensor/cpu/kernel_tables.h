// Declares what each *.simd.cc file fills into the table of kernels, once per instruction set.
#pragma once

#include "base/code_path.h"
#include "tensor/kernels.h"

#define TUTTI_KERNEL_PARTS(isa)                 \
  namespace isa {                               \
  void fill_norm(Kernels& table);               \
  void fill_batch_norm(Kernels& table);         \
  void fill_activation(Kernels& table);         \
  void fill_rotary(Kernels& table);             \
  void fill_dropout(Kernels& table);            \
  void fill_attention(Kernels& table);          \
  void fill_attention_backward(Kernels& table); \
  void fill_loss(Kernels& table);               \
  void fill_vocabulary(Kernels& table);         \
  void fill_matmul(Kernels& table);             \
  }

namespace tutti {
TUTTI_ON_EACH_PATH(TUTTI_KERNEL_PARTS)
}  // namespace tutti
