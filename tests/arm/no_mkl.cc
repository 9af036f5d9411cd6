// MKL is not there for ARM, and nobody asks for it.
#include "tensor/matmul.h"

tutti::Matmul tutti::mkl_matmul() { return {}; }
