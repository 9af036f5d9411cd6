// Small jobs for tests of devices; each ends in [train], so that a test may add lines there.
#pragma once

namespace tutti::testing_support {

// Odd numbers of lanes: no number of ranks owns whole subtrees only.
inline constexpr const char* kSmallGpt = R"(
[model]
kind = "gpt"
layers = 2
width = 16
heads = 2
context = 8
vocab = 256
tied = true
[data]
kind = "walk"
[train]
lanes = 5
micro_batches = 2
micro_batch_size = 2
steps = 4
)";
inline constexpr const char* kSmallMlp = R"(
[model]
kind = "mlp"
inputs = 2
hidden = [9, 7]
classes = 2
norm = "batch"
init = "he-normal"
[data]
kind = "points"
[train]
lanes = 5
micro_batches = 2
micro_batch_size = 3
steps = 4
)";

// Larger, so that what they take of a device is more than rounding.
inline constexpr const char* kLargerGpt = R"(
[model]
kind = "gpt"
layers = 2
width = 64
heads = 2
context = 32
vocab = 256
[data]
kind = "walk"
[train]
lanes = 4
micro_batches = 2
micro_batch_size = 2
steps = 4
)";
inline constexpr const char* kLargerMlp = R"(
[model]
kind = "mlp"
inputs = 64
hidden = [200, 100]
classes = 10
norm = "batch"
init = "he-normal"
[data]
kind = "points"
[train]
lanes = 4
micro_batches = 2
micro_batch_size = 16
steps = 4
)";

}  // namespace tutti::testing_support
