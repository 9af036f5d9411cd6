// Makes a model of a TorchScript file that another program wrote.
#pragma once

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

/// The model of model.kind = "script": the module of model.path as one block "script", then the
/// job's loss. The module's forward takes data_borders(job)[0] and returns the logits: [B,
/// classes], or [B, outputs] where targets are values. Parameters keep the file's names
/// ("layer1.weight") and start with its values. Float buffers that its forward changes in training
/// become Role::kMeanBuffer; a first pass over made-up inputs finds them, along with draws from
/// torch's generator. Throws Error naming the file if it is missing or no TorchScript, has no
/// forward or no parameters, or returns something else.
Model make_script(const Job& job);

}  // namespace tutti
