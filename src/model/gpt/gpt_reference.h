// The same GPT (blocks, parameters, borders, dropout masks) from ATen's operations with autograd
// inside each segment. Slower; what the hand-written segments are tested against, and an example of
// a model by autograd.
#pragma once

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

Model make_gpt_reference(const Job& job);

}  // namespace tutti
