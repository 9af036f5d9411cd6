// An accelerator as the executor and the memory see it: streams, events, memory, copies and
// captured steps. It does not know torch; src/cuda implements it for NVIDIA GPUs, and
// tests/support/host_device.h on the host's own memory.
//
//   stream   an in-order queue of the device: what is put on it runs after all that was put there
//            before
//   event    a point in a stream that other streams and the host can wait for
//   capture  what is put on a stream between begin and end is not run but kept (a CUDA graph), and
//            can be launched again and again
//
// All methods may be called from any thread, and none waits for the device unless it says
// so. A fault of the device (a kernel that failed, a lost GPU) is thrown as Error by the
// next call that sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "exec/accounts.h"

namespace tutti {

/// Handles that belong to the device; a null stream is none.
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
  /// free: at the time of asking
  int64_t total_bytes = 0, free_bytes = 0;
  /// what the driver supports, and what is loaded; 13000 is CUDA 13.0
  int driver = 0, runtime = 0;
  std::string cudnn, cublas, nccl;  ///< versions; empty where there is none
};

/// Use of the one region, of planned size, that ATen takes its temporaries on the device from.
struct PoolUse {
  int64_t reserved = 0, current = 0, peak = 0;  ///< bytes
  /// how often the region had to be enlarged since it was reserved
  int64_t growths = 0;
};

class Device : public MemorySource {
 public:
  ~Device() override = default;
  virtual const DeviceInfo& info() const = 0;
  virtual int64_t free_bytes() const = 0;
  /// The device is not to be waited for any more (a kernel never ends). From here on nothing is
  /// given back to it; the end of the process does that.
  virtual void abandon() {}

  // Memory of the device is taken and given back as MemorySource says, and is zero at first. It is
  // taken before the first step and given back after the last: taking may wait for the device.

  /// Page-locked host memory: copies from and to it run alongside the compute. It is zero at first.
  virtual std::span<std::byte> take_pinned(size_t bytes) = 0;
  virtual void give_back_pinned(std::span<std::byte> memory) = 0;

  /// The stream exists as long as the device.
  virtual Stream make_stream() = 0;
  /// Either side may be host memory.
  virtual void copy(Stream stream, void* to, const void* from, size_t bytes) = 0;
  virtual void zero(Stream stream, void* memory, size_t bytes) = 0;
  /// From here on ATen's operations of this thread, and of the backward passes it
  /// starts, go to this stream.
  virtual void make_current(Stream stream) = 0;

  /// The event exists as long as the device.
  virtual StreamEvent make_event(bool timed) = 0;
  virtual void record(StreamEvent event, Stream stream) = 0;
  /// Makes the stream wait for the event. `outside`, while capturing: the event is recorded outside
  /// of the captured step, and every launch waits for its latest record.
  virtual void wait(Stream stream, StreamEvent event, bool outside = false) = 0;
  /// Whether all that was put on the stream before the event has run; true for an event that
  /// was never recorded.
  virtual bool done(StreamEvent event) const = 0;
  /// Both events must be timed and done.
  virtual double seconds(StreamEvent from, StreamEvent to) const = 0;
  /// Waits for all that is on the stream; never called in a steady step.
  virtual void synchronise(Stream stream) = 0;

  virtual bool captures() const = 0;
  virtual void begin_capture(Stream stream) = 0;
  virtual CapturedStep end_capture(Stream stream) = 0;
  virtual void launch(const CapturedStep& step, Stream stream) = 0;
  virtual void destroy(CapturedStep step) = 0;

  /// Reserves `bytes` for ATen's temporaries. What does not fit there enlarges the
  /// region, and is counted.
  virtual void reserve_pool(int64_t bytes) = 0;
  virtual PoolUse pool() const = 0;
  virtual void reset_pool_peak() = 0;
};

}  // namespace tutti
