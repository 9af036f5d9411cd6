// A job of 2 ranks that every axis of a mesh can cut.
#pragma once

namespace tutti::testing_support {

constexpr const char* kMeshMlp = R"(
[model]
kind = "mlp"
inputs = 4
hidden = [16, 16, 16]
classes = 4
[data]
kind = "points"
[train]
lanes = 4
micro_batches = 2
micro_batch_size = 2
tensor_slices = 2
steps = 4
[layout]
ranks = 2
)";

}  // namespace tutti::testing_support
