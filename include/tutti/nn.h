// Blocks from modules of torch::nn. A header of its own because torch's layers take twenty seconds
// to compile.
#pragma once

#include <torch/nn.h>

#include "model/adapt/module.h"  // adapt for modules
