// The one way to a GPU: libtutti_cuda.so, a library of its own beside the command, opened at run
// time. A host without a GPU, a driver or LibTorch's CUDA libraries never opens it and trains on
// its CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <memory>
#include <string>
#include <vector>

#include "config/job.h"
#include "device/group.h"
#include "device/state_kernels.h"
#include "exec/device.h"
#include "tensor/kernels.h"

namespace tutti {

/// What the library exports, by `extern "C" const DeviceLibrary* tutti_device_library()`.
struct DeviceLibrary {
  static constexpr int kVersion = 4;  ///< grows with every change of these headers
  int version = kVersion;
  /// How many devices this host has. Makes this process one that must not fork any more. Throws
  /// Error saying what is missing (no driver, a driver too old for the runtime, no device).
  int (*count)();
  /// All of them, otherwise alike. Takes memory of each for as long as the process lives: not for
  /// ranks.
  std::vector<DeviceInfo> (*devices)();
  /// Device `ordinal`, for one rank. ATen's deterministic algorithms and pool are set up for the
  /// process: one device a process.
  std::unique_ptr<Device> (*open)(int ordinal);
  at::DeviceType type;

  const KernelsFor<float>* float32;
  const KernelsFor<c10::BFloat16>* bfloat16;
  const KernelsFor<c10::Half>* float16;
  StateKernels state;

  /// `shares` as in GroupOptions.
  std::string (*group_id)(bool shares);
  /// Collective. Waits for all ranks, at most until the deadline or the cancel: then CommError.
  std::unique_ptr<DeviceGroup> (*join)(Device& device, const GroupOptions& options, Clock& clock,
                                       Deadline deadline, const Cancel* cancel);
  /// Times the algorithms of every matmul that this process has run on its device, and says which
  /// is the fastest of each: rows for the table that the library was built with. Null where there
  /// is no choice.
  std::string (*measure_matmuls)() = nullptr;
};

/// Whether a GPU's driver is on this host at all: a look at files, nothing is opened.
bool has_gpu_driver();
/// Whether somebody would expect a GPU here: it has a driver, or it is a container on a host that
/// has one.
bool expects_gpu();

/// Opens libtorch_cuda and libtutti_cuda, once a process. The latter lies in ../lib of the
/// command's folder, in that folder, or where TUTTI_CUDA_LIBRARY says. Throws Error naming what is
/// missing and how to mend it.
const DeviceLibrary& device_library();
/// The library at `path`, for a process in which libtorch_cuda is open. Throws Error as above.
const DeviceLibrary& open_device_library(const std::string& path);
/// Where LibTorch lies that this process runs on.
std::string torch_folder();

/// What a host can offer, asked for in a child process, so that this one may still fork: the
/// devices, or why there are none and what mends it ("this host has no NVIDIA driver (no
/// /dev/nvidiactl); run on a GPU host"). At most `seconds`. To be called before this process has
/// threads: the child is a copy of it (device/child.h).
struct DeviceProbe {
  std::vector<DeviceInfo> devices;
  std::string reason;
};
DeviceProbe probe_devices(double seconds = 60);

/// Why the library's kernels do not run on a device, and what mends it; empty: they do.
std::string why_unsuited(const DeviceInfo& device);

/// Fills in a machine's GPUs, or why it has none, for a job whose numerics.device is `device`.
/// "cpu": looks at nothing. Asks as probe_devices does.
void add_gpus(Machine& machine, DeviceKind device);

}  // namespace tutti
