// Measures what a description cannot know: the bytes that ATen allocates while a segment runs.
#pragma once

#include "exec/device.h"
#include "model/core/segment.h"

namespace tutti {

/// Runs every segment once forward and once back, alone, on ones and zeros, and sets
/// SegmentShape::saved_bytes and work_bytes in `shape` (made by describe) to what it declares plus
/// what ATen held for it from forward to backward, and at its peak besides. Segments of one type
/// with equal borders and parameters are run once. Needs the memory of one block. Installs the
/// accounting allocator. Throws Error where a segment refuses to run: undeclared draws, changed
/// buffers, other outputs than declared.
void dry_run(const Model& model, ModelShape& shape);
/// The same on a device, by its pool, with weights in `precision`.
void dry_run(const Model& model, ModelShape& shape, Device& device, at::Device place,
             at::ScalarType precision);

}  // namespace tutti
