// The ranks' connection between their devices: bytes travel from device memory to device memory, in
// stream order. It is NCCL's in src/cuda, and goes over a Transport in tests.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/wait.h"
#include "exec/device.h"

namespace tutti {

struct DeviceSend {
  int peer;
  const void* from;
  size_t bytes;
};
struct DeviceReceive {
  int peer;
  void* to;
  size_t bytes;
};

/// All ranks put the same sums on it in the same order, and each two ranks the same messages
/// between them. What a rank puts on it runs one after the other, on whichever streams. Nothing
/// here waits for peers once there has been an exchange with them: a lost peer shows in fault(),
/// and in a stream that makes no progress, which the waiter ends by abort().
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Puts all messages on the stream at once: none waits for another. Messages between two ranks
  /// are matched in order.
  virtual void exchange(Stream stream, std::span<const DeviceSend> sends,
                        std::span<const DeviceReceive> receives) = 0;
  /// Sums in place over all ranks. Exact where at most one rank's value is not zero: the
  /// vote's array.
  virtual void sum(Stream stream, double* values, int64_t n) = 0;
  /// Sums in place; the order of additions is the library's own (numerics.reduce = "ring").
  virtual void sum(Stream stream, float* values, int64_t n) = 0;
  /// What went wrong apart from the streams; empty: nothing so far.
  virtual std::string fault() = 0;
  /// Ends what is on the device without its peers. Afterwards the group can only be destroyed.
  virtual void abort() = 0;
};

struct GroupOptions {
  int rank = 0, size = 1;
  std::string id;       ///< from DeviceLibrary::group_id, the same for all ranks
  bool shares = false;  ///< several ranks of a host are on one device (tests)
  int host = 0;
  /// the most multiprocessors of a device that work for it at a time; 0: as the library likes
  int blocks = 0;
};

}  // namespace tutti
