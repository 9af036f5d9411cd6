// Measures what a description cannot know: the bytes that ATen allocates while a segment runs.
#pragma once

#include "exec/device.h"
#include "model/core/segment.h"

namespace tutti {

/// Runs every segment alone, once forward and once backward, on ones and zeros. Sets
/// SegmentShape::saved_bytes and work_bytes in `shape` (made by describe) to what the segment
/// declares plus what ATen held from forward to backward, and plus ATen's peak beyond that,
/// respectively. Segments of one type with equal borders and parameters are run once. Needs the
/// memory of one block. Installs the accounting allocator. Throws Error if a segment refuses to
/// run: because of draws it did not declare, buffers it changed, or outputs other than declared.
void dry_run(const Model& model, ModelShape& shape);
/// The same on a device, measured by its pool, with weights in `precision`.
void dry_run(const Model& model, ModelShape& shape, Device& device, at::Device place,
             at::ScalarType precision);

}  // namespace tutti
