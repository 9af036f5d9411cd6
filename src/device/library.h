// The one way to a GPU: libtutti_cuda.so, a library of its own alongside the command, opened at run
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
  /// How many devices this host has. Afterwards this process must not fork any more. Throws Error
  /// saying what is missing (no driver, a driver too old for the runtime, no device).
  int (*count)();
  /// Describes all of them, and is otherwise like count(). It takes memory of each for as long as
  /// the process lives, so it is not for ranks.
  std::vector<DeviceInfo> (*devices)();
  /// Opens device `ordinal` for one rank. ATen's deterministic algorithms and pool are set up for
  /// the process, which can have one device.
  std::unique_ptr<Device> (*open)(int ordinal);
  at::DeviceType type;

  const KernelsFor<float>* float32;
  const KernelsFor<c10::BFloat16>* bfloat16;
  const KernelsFor<c10::Half>* float16;
  StateKernels state;

  /// The id of a new group. `shares` as in GroupOptions.
  std::string (*group_id)(bool shares);
  /// Joins a group. Collective: waits for all ranks, at most until the deadline or the cancel, then
  /// throws CommError.
  std::unique_ptr<DeviceGroup> (*join)(Device& device, const GroupOptions& options, Clock& clock,
                                       Deadline deadline, const Cancel* cancel);
  /// Times the algorithms of every matmul that this process has run on its device, and returns the
  /// fastest of each as rows of the table that the library was built with. Null where there is no
  /// choice of algorithms.
  std::string (*measure_matmuls)() = nullptr;
};

/// Whether a GPU's driver is on this host at all. It looks at files and opens nothing.
bool has_gpu_driver();
/// Whether somebody would expect a GPU here: there is a driver, or this is a container on a host
/// that has one.
bool expects_gpu();

/// Opens libtorch_cuda and libtutti_cuda, once per process. The latter is looked for in ../lib of
/// the command's folder and in that folder, or is where TUTTI_CUDA_LIBRARY says. Throws Error
/// naming what is missing and how to mend it.
const DeviceLibrary& device_library();
/// The library at `path`, for a process in which libtorch_cuda is open. Throws Error as above.
const DeviceLibrary& open_device_library(const std::string& path);
/// The folder of the LibTorch that this process runs on; empty if it is not known.
std::string torch_folder();

/// What a host can offer: the devices, or why there are none and what mends it ("this host has no
/// NVIDIA driver (no /dev/nvidiactl); run on a GPU host"). It is asked for in a child process, so
/// that this one may still fork, and takes at most `seconds`. To be called before this process has
/// threads, since the child is a copy of it (device/child.h).
struct DeviceProbe {
  std::vector<DeviceInfo> devices;
  std::string reason;
};
DeviceProbe probe_devices(double seconds = 60);

/// Why the library's kernels do not run on a device, and what mends it; empty if they do.
std::string why_unsuited(const DeviceInfo& device);

/// Fills in a machine's GPUs, or why it has none, for a job whose numerics.device is `device`. For
/// "cpu" it looks at nothing. It asks as probe_devices does.
void add_gpus(Machine& machine, DeviceKind device);

}  // namespace tutti
