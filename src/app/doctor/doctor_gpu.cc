// Measures in a child process, since a driver may hang or crash and CUDA must not start in the
// process that goes on. The answer travels as text.
#include "app/doctor/doctor_gpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "device/child.h"
#include "device/device_rate.h"
#include "device/library.h"

namespace tutti {

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

/// Copies on one stream, with two events around what is timed.
class Copies {
 public:
  explicit Copies(Device& device)
      : device_(device),
        bytes_(static_cast<size_t>(device.free_bytes() >= 4 * kGiB ? kGiB / 2 : kGiB / 16)),
        stream_(device.make_stream()),
        begin_(device.make_event(true)),
        end_(device.make_event(true)) {}

  void measure(GpuRates& rates) {
    const auto here = device_.take(BufferKind::kWork, bytes_),
               there = device_.take(BufferKind::kWork, bytes_);
    const auto host = device_.take_pinned(bytes_);
    rates.copy = 2 * rate(there.data(), here.data());
    rates.to_device = rate(here.data(), host.data());
    rates.to_host = rate(host.data(), here.data());
    device_.give_back_pinned(host);
    device_.give_back(there);
    device_.give_back(here);
  }

 private:
  /// Bytes per second of the fastest of several, after one that warms up.
  double rate(void* to, const void* from) {
    double best = 1e9;
    for (int i = 0; i < 8; ++i) {
      device_.record(begin_, stream_);
      device_.copy(stream_, to, from, bytes_);
      device_.record(end_, stream_);
      device_.synchronise(stream_);
      if (i > 0) best = std::min(best, device_.seconds(begin_, end_));
    }
    return static_cast<double>(bytes_) / std::max(best, 1e-9);
  }

  Device& device_;
  size_t bytes_;
  Stream stream_;
  StreamEvent begin_, end_;
};

/// The runtime is loaded with LibTorch's CUDA libraries.
std::vector<int> peers_of(int ordinal, int devices) {
  using CanAccessPeer = int (*)(int* can, int device, int peer);
  const auto ask =
      reinterpret_cast<CanAccessPeer>(::dlsym(RTLD_DEFAULT, "cudaDeviceCanAccessPeer"));
  std::vector<int> peers;
  for (int peer = 0; ask != nullptr && peer < devices; ++peer) {
    int can = 0;
    if (peer != ordinal && ask(&can, ordinal, peer) == 0 && can != 0) peers.push_back(peer);
  }
  return peers;
}

std::string measured(const DeviceInfo& info, int devices) {
  GpuRates rates;
  const DeviceLibrary& library = device_library();
  const at::Device place(library.type, static_cast<c10::DeviceIndex>(info.ordinal));
  // Never destroyed: the process ends with it, and a driver's clean-up is nothing to wait for.
  Device& device = *library.open(info.ordinal).release();
  Copies(device).measure(rates);
  const Stream stream = device.make_stream();
  rates.float32 = matmul_gflops(device, stream, place, at::kFloat) * 1e9;
  rates.bfloat16 = matmul_gflops(device, stream, place, at::kBFloat16) * 1e9;
  const nlohmann::json text = {
      {"float32", rates.float32}, {"bfloat16", rates.bfloat16},
      {"copy", rates.copy},       {"to_device", rates.to_device},
      {"to_host", rates.to_host}, {"peers", peers_of(info.ordinal, devices)}};
  return text.dump();
}

}  // namespace

GpuRates measure_gpu(const DeviceInfo& device, int devices, double seconds) {
  const ChildAnswer answer = in_child([&] { return measured(device, devices); }, seconds);
  GpuRates rates;
  if (!answer.ok()) {
    rates.fault = answer.text;
    return rates;
  }
  const auto said = nlohmann::json::parse(answer.text);
  rates.float32 = said.at("float32");
  rates.bfloat16 = said.at("bfloat16");
  rates.copy = said.at("copy");
  rates.to_device = said.at("to_device");
  rates.to_host = said.at("to_host");
  rates.peers = said.at("peers").get<std::vector<int>>();
  return rates;
}

}  // namespace tutti
