// How micro-batches reach a device: the loader's tensors are copied into pinned memory, from there
// beside the compute into one of two stages of device memory, and at the start of their step into
// the place where the step reads them, which is always the same.
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
  /// `sequence`: a step's micro-batches as the loader hands them out; `place` is the device for
  /// ATen. All others must outlive it.
  DeviceFeed(const Model& model, const std::vector<MicroBatch>& sequence, Loader& loader,
             Device& device, at::Device place, Accounts& accounts);
  ~DeviceFeed();
  /// What one takes of the device.
  static int64_t device_bytes(const Model& model, int64_t micro_batches);
  DeviceFeed(const DeviceFeed&) = delete;
  DeviceFeed& operator=(const DeviceFeed&) = delete;

  /// Begins to bring the step's micro-batches to the device, unless that was begun before. What the
  /// loader throws is kept for use().
  void stage(int64_t step);
  /// Stages them and puts them, behind what is on the stream, into the place where the step reads
  /// them, unless that was done before.
  void place(int64_t step, Stream stream);
  /// The same for a step that comes next on the stream.
  void use(int64_t step, Stream stream);
  /// Where they are.
  const std::vector<at::Tensor>& tensors(int lane, int micro) const;
  /// Loader::digest of what was used.
  uint64_t digest() const { return digest_; }

 private:
  struct Stage {
    int64_t step = -1;
    std::span<std::byte> pinned, memory;
    StreamEvent arrived;
    std::exception_ptr failure;
    uint64_t digest = 0;  // of the loader behind it
  };

  const Model& model_;
  const std::vector<MicroBatch> sequence_;
  std::map<std::pair<int, int>, size_t> index_;  // of (lane, micro) in it
  Loader& loader_;
  Device& device_;
  std::vector<size_t> offsets_;  // of each tensor of a micro-batch
  size_t bytes_ = 0;             // of a micro-batch
  size_t count_ = 0;             // micro-batches of a step
  Arena arena_;
  std::span<std::byte> place_;
  int64_t placed_ = -1;  // the step whose micro-batches are there
  Stage stages_[2];
  Stream stream_;
  std::vector<std::vector<at::Tensor>> tensors_;
  uint64_t digest_ = 0;
};

}  // namespace tutti
