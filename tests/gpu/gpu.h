// What the tests on a GPU share: the device, a stream that ATen works on, arrays that go there and
// come back.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/library.h"

namespace tutti {

/// A fixture: GPU 0 with a stream of its own, ATen's current one.
class GpuTest : public testing::Test {
 protected:
  GpuTest() : library(device_library()), device(library.open(0)), stream(device->make_stream()) {
    device->make_current(stream);
  }
  ~GpuTest() override {
    try {
      device->synchronise(stream);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "at the end: " << error.what();
    }
  }

  void wait() { device->synchronise(stream); }

  const DeviceLibrary& library;
  std::unique_ptr<Device> device;
  Stream stream;
};

/// n values in the device's memory, zero at first.
template <class T>
class GpuArray {
 public:
  GpuArray(Device& device, Stream stream, size_t n)
      : device_(device),
        stream_(stream),
        n_(n),
        memory_(device.take(BufferKind::kWork, n * sizeof(T))) {}
  GpuArray(Device& device, Stream stream, const std::vector<T>& values)
      : GpuArray(device, stream, values.size()) {
    set(values);
  }
  ~GpuArray() { device_.give_back(memory_); }
  GpuArray(const GpuArray&) = delete;
  GpuArray& operator=(const GpuArray&) = delete;

  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  size_t size() const { return n_; }
  /// Waits until they are there.
  void set(const std::vector<T>& values) {
    device_.copy(stream_, data(), values.data(), values.size() * sizeof(T));
    device_.synchronise(stream_);
  }
  /// What is there when the stream has done all it was given.
  std::vector<T> get() const {
    std::vector<T> values(n_);
    device_.copy(stream_, values.data(), data(), n_ * sizeof(T));
    device_.synchronise(stream_);
    return values;
  }

 private:
  Device& device_;
  Stream stream_;
  size_t n_;
  std::span<std::byte> memory_;
};

/// With random numbers whose seed stands in every failure's message.
class SeededGpuTest : public GpuTest {
 protected:
  SeededGpuTest()
      : seed(std::random_device{}()),
        random(seed),
        trace(__FILE__, __LINE__, fmt::format("seed {}", seed)) {}
  template <class T>
  GpuArray<T> on_gpu(const std::vector<T>& values) {
    return GpuArray<T>(*device, stream, values);
  }

  uint64_t seed;
  std::mt19937_64 random;
  testing::ScopedTrace trace;
};

/// Where two arrays first differ in their bits, for the message; -1: nowhere.
template <class T>
int64_t first_difference(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return static_cast<int64_t>(std::min(a.size(), b.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) return static_cast<int64_t>(i);
  }
  return -1;
}

template <class T>
void expect_same_bits(const std::vector<T>& got, const std::vector<T>& want,
                      const std::string& what) {
  const int64_t at = first_difference(got, want);
  if (at < 0) return;
  if (at < static_cast<int64_t>(std::min(got.size(), want.size()))) {
    ADD_FAILURE() << what << ": element " << at << " of " << want.size() << " is "
                  << testing::PrintToString(got[at]) << ", not "
                  << testing::PrintToString(want[at]);
  } else {
    ADD_FAILURE() << what << ": " << got.size() << " elements, not " << want.size();
  }
}

inline std::vector<float> random_floats(std::mt19937_64& random, size_t n, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

}  // namespace tutti
