// An accelerator as the executor and the memory see it: streams, events, memory, copies and
// captured steps. Torch-free; src/cuda implements it for NVIDIA GPUs, tests/support/host_device.h
// on the host's own memory.
//
//   stream   an in-order queue of the device; what is put on one runs after all that was put there
//            before
//   event    a point in a stream that other streams and the host can wait for
//   capture  what is put on a stream between begin and end is not run but kept, and can be launched
//            again and again
//
// All methods may be called from any thread; none waits for the device unless it says so. A fault
// of the device (a kernel that failed, a lost GPU) is thrown as Error by the next call that sees
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "exec/accounts.h"

namespace tutti {

/// Handles of the device's own; a null stream is none.
struct Stream {
  void* handle = nullptr;
};
struct StreamEvent {
  void* handle = nullptr;
};
struct CapturedStep {
  void* handle = nullptr;
};

struct DeviceInfo {
  int ordinal = 0;
  std::string name, uuid;                         ///< "NVIDIA H200"
  int major = 0, minor = 0, multiprocessors = 0;  ///< compute capability
  int64_t total_bytes = 0, free_bytes = 0;        ///< free: when it was asked
  /// 13000 is CUDA 13.0: what the driver supports; what is loaded
  int driver = 0, runtime = 0;
  std::string cudnn, cublas, nccl;  ///< versions; empty: not there
};

/// ATen's temporaries on the device come from one region whose size was planned.
struct PoolUse {
  int64_t reserved = 0, current = 0, peak = 0;  ///< bytes
  /// times that the region had to be enlarged since it was reserved
  int64_t growths = 0;
};

class Device : public MemorySource {
 public:
  ~Device() override = default;
  virtual const DeviceInfo& info() const = 0;
  virtual int64_t free_bytes() const = 0;
  /// The device is not to be waited for any more (a kernel that never ends): from here on nothing
  /// is given back to it, which the end of the process does.
  virtual void abandon() {}

  // Memory of the device comes and goes as MemorySource says; what is taken is zero. It is taken
  // before the first step and given back after the last: taking may wait for the device.
  /// Host memory that copies run beside the compute from and to. Zero.
  virtual std::span<std::byte> take_pinned(size_t bytes) = 0;
  virtual void give_back_pinned(std::span<std::byte> memory) = 0;

  /// lives as long as the device
  virtual Stream make_stream() = 0;
  /// either may be host memory
  virtual void copy(Stream stream, void* to, const void* from, size_t bytes) = 0;
  virtual void zero(Stream stream, void* memory, size_t bytes) = 0;
  /// ATen's operations of this thread (and the backward passes it starts) go to this stream from
  /// here on.
  virtual void make_current(Stream stream) = 0;

  virtual StreamEvent make_event(bool timed) = 0;  ///< lives as long as the device
  virtual void record(StreamEvent event, Stream stream) = 0;
  /// `outside`: while capturing, the event is one that is recorded outside of the captured step:
  /// every launch waits for its latest record.
  virtual void wait(Stream stream, StreamEvent event, bool outside = false) = 0;
  /// Whether all that stood before the event has run; true for one that was never recorded.
  virtual bool done(StreamEvent event) const = 0;
  virtual double seconds(StreamEvent from, StreamEvent to) const = 0;  ///< both timed and done
  /// waits; never in a steady step
  virtual void synchronise(Stream stream) = 0;

  virtual bool captures() const = 0;
  virtual void begin_capture(Stream stream) = 0;
  virtual CapturedStep end_capture(Stream stream) = 0;
  virtual void launch(const CapturedStep& step, Stream stream) = 0;
  virtual void destroy(CapturedStep step) = 0;

  /// Reserves `bytes` for ATen's temporaries; what does not fit there enlarges it, and is counted.
  virtual void reserve_pool(int64_t bytes) = 0;
  virtual PoolUse pool() const = 0;
  virtual void reset_pool_peak() = 0;
};

}  // namespace tutti
