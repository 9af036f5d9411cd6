// What a C++ program with a model of its own includes: blocks from functions of tensors, losses,
// and the train command as a function. For modules of torch::nn include <tutti/nn.h> too.
#pragma once

#include "app/tutti_main.h"       // train_main
#include "config/job.h"           // Job
#include "model/adapt/adaptor.h"  // adapt for functions
// Model, Block, Border, Parameter, Init; Segment for a forward and backward of one's own
#include "model/core/segment.h"
#include "model/loss/loss.h"  // cross_entropy_block
