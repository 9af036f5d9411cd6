// The reduction of one bucket on a device: comm/reduction.h's job, put on a stream instead of done by the calling
// thread. No rank reads another's memory: everything travels.
//
//   N ranks; rank r's partials are bucket-sized arrays in its arena; slice r of the result belongs to rank r
//   1. reduce(): one exchange takes slice p of all my partials to every peer p, and brings the peers' partials of my
//      slice into scratch; they and my own are then folded in tree order over my first partial, in place
//   2. gather(): one exchange takes every owner's slice to all, into their first partials
//
// fold = kRoot: rank 0 folds everything, and reduce() takes it to all; gather() has nothing left to do. kind = kRing:
// every rank adds up its own partials and the library's sum does the rest, in reduce() too.
#pragma once

#include <vector>

#include "comm/reduction.h"
#include "device/group.h"
#include "device/state_kernels.h"

namespace tutti {

/// All addresses are worked out and all memory is taken in the constructor: reduce() and gather() only put work on the
/// stream, the same on every call, so that they can be captured. Device, group and arena must outlive it.
class DeviceReduction {
 public:
  /// `arena`: the device's memory that spec.offsets of this rank count from, in bytes. `group`: null for one rank
  /// alone.
  DeviceReduction(const ReductionSpec& spec, float* arena, Device& device, DeviceGroup* group,
                  const StateKernels& kernels);
  ~DeviceReduction();
  DeviceReduction(const DeviceReduction&) = delete;
  DeviceReduction& operator=(const DeviceReduction&) = delete;

  /// After it, this rank's slice of result() is final.
  void reduce(Stream stream);
  /// After it, all of result() is final.
  void gather(Stream stream);
  /// The bucket's result_size floats: this rank's first partial. Padding between pieces is not reduced.
  const float* result() const { return partials_[0]; }
  int64_t scratch_bytes() const { return static_cast<int64_t>(scratch_.size()); }
  /// What rank `rank` will take: known before there is a device.
  static int64_t scratch_bytes(const ReductionSpec& spec, int rank);

 private:
  struct Fold {
    float* out;
    std::vector<const float*> terms;
    size_t order;  ///< index into orders_
    int64_t size;
  };
  struct Addition {
    float* into;
    const float* from;
    int64_t size;
  };

  void check(const ReductionSpec& spec) const;
  void prepare_exchange(const ReductionSpec& spec, const std::vector<Range>& slices);
  void prepare_folds(const ReductionSpec& spec, Range slice);
  void prepare_gather(const std::vector<Range>& slices);
  void prepare_ring(const ReductionSpec& spec);

  Device& device_;
  DeviceGroup* group_;
  const StateKernels kernels_;
  int me_, size_;
  ReduceKind kind_;
  bool gather_at_once_;  ///< reduce() ends with what gather() would do
  int64_t result_size_;
  std::span<std::byte> scratch_;
  std::vector<float*> partials_;
  std::vector<DeviceSend> sends_, gather_sends_;
  std::vector<DeviceReceive> receives_, gather_receives_;
  std::vector<std::vector<FoldStep>> orders_;  ///< by number of gradients that a parameter has
  std::vector<Fold> folds_;
  std::vector<Addition> additions_;  ///< ring
};

}  // namespace tutti
