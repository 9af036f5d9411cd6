// Arrays of a device that exist as long as an engine: the tables that kernels look up, and room for
// what they write.
#pragma once

#include <memory>
#include <vector>

#include "exec/accounts.h"
#include "exec/device.h"

namespace tutti {

class DeviceArrays {
 public:
  /// `stream` is waited for when values are copied. All arguments must outlive it.
  DeviceArrays(Device& device, Stream stream, Accounts& accounts)
      : device_(device), stream_(stream), accounts_(accounts) {}

  /// `count` zeros; null if there are none.
  template <class T>
  T* take(BufferKind kind, int64_t count) {
    if (count == 0) return nullptr;
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    arenas_.push_back(std::make_unique<Arena>(kind, bytes, accounts_, &device_));
    return reinterpret_cast<T*>(arenas_.back()->take(bytes).data());
  }
  /// A copy of the values; it has arrived when this returns.
  template <class T>
  T* copied(const std::vector<T>& values) {
    T* memory = take<T>(BufferKind::kWork, static_cast<int64_t>(values.size()));
    if (memory == nullptr) return memory;
    device_.copy(stream_, memory, values.data(), values.size() * sizeof(T));
    device_.synchronise(stream_);
    return memory;
  }

 private:
  Device& device_;
  Stream stream_;
  Accounts& accounts_;
  std::vector<std::unique_ptr<Arena>> arenas_;
};

}  // namespace tutti
