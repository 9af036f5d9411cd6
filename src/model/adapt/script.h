// Models that other programs wrote: a TorchScript file as a block.
#pragma once

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

/// model.kind = "script": the module of model.path as one block "script", then the job's loss. Its
/// forward takes data_borders(job)[0] and returns the logits [B, classes], or [B, outputs] where
/// targets are values. Parameters keep the file's names ("layer1.weight") and start with its
/// values; float buffers that its forward changes in training are Role::kMeanBuffer, which a first
/// pass over made-up inputs finds out, along with draws from torch's generator. Throws Error naming
/// the file where it is missing or no TorchScript, has no forward or no parameters, or returns
/// something else.
Model make_script(const Job& job);

}  // namespace tutti
