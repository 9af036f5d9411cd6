// The GPT under autograd: the same blocks, parameters, borders and dropout masks, from ATen's
// operations. It is slower. It is what the hand-written segments are tested against, and an example
// of a model by autograd.
#pragma once

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

/// The model of a job with model.autograd. Throws Error for sizes and names that do not make a GPT.
Model make_gpt_reference(const Job& job);

}  // namespace tutti
