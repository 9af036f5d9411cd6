// How micro-batches reach a device. The loader's tensors are copied into pinned memory, and from
// there, alongside the compute, into one of two staging buffers on the device; at the start of
// their step they are copied to the input: where steps read, which is always the same memory.
#pragma once

#include <exception>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "data/load/loader.h"
#include "exec/device.h"
#include "model/core/segment.h"

namespace tutti {

class DeviceFeed {
 public:
  /// `sequence`: the micro-batches of a step in the order in which the loader hands them out;
  /// `at_device`: the device, as ATen names it. All other arguments must outlive it.
  DeviceFeed(const Model& model, const std::vector<MicroBatch>& sequence, Loader& loader,
             Device& device, at::Device at_device, Accounts& accounts);
  ~DeviceFeed();
  /// Bytes of device memory that a feed takes.
  static int64_t device_bytes(const Model& model, int64_t micro_batches);
  DeviceFeed(const DeviceFeed&) = delete;
  DeviceFeed& operator=(const DeviceFeed&) = delete;

  /// Begins to bring the micro-batches of the step to the device, unless that has begun before.
  /// What the loader throws is kept for use().
  void bring(int64_t step);
  /// The same, and puts a copy on the stream that moves them to the input, after what is on the
  /// stream; unless that was done before.
  void fill_input(int64_t step, Stream stream);
  /// All of that for the step that comes next on the stream. Throws what the loader threw for it.
  void use(int64_t step, Stream stream);
  /// Where a step reads the tensors of a micro-batch.
  const std::vector<at::Tensor>& tensors(int lane, int micro) const;
  /// The Loader::digest of what was used.
  uint64_t digest() const { return digest_; }

 private:
  struct Staging {
    int64_t step = -1;
    std::span<std::byte> pinned, memory;
    StreamEvent arrived;
    std::exception_ptr failure;
    uint64_t digest = 0;  // of the loader, after this step
  };

  const Model& model_;
  const std::vector<MicroBatch> sequence_;
  std::map<std::pair<int, int>, size_t> index_;  // (lane, micro): its number in the sequence
  Loader& loader_;
  Device& device_;
  std::vector<size_t> offsets_;  // where each tensor of a micro-batch begins
  size_t bytes_ = 0;             // of a micro-batch
  size_t count_ = 0;             // of micro-batches in a step
  Arena arena_;
  std::span<std::byte> input_;
  int64_t input_step_ = -1;  // the step whose micro-batches are in input_
  Staging staging_[2];
  Stream stream_;
  std::vector<std::vector<at::Tensor>> tensors_;
  uint64_t digest_ = 0;
};

}  // namespace tutti
