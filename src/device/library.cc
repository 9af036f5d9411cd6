// Finds and opens the GPU library, and says what is missing in words that a user can act on. The
// command links against nothing of CUDA: each question that could fail is asked only when a job may
// need the answer.
#include "device/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <torch/headeronly/version.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/lists.h"
#include "device/child.h"

namespace tutti {

namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libtutti_cuda.so";
constexpr const char* kDriverVersion = "/proc/driver/nvidia/version";  // also in containers

bool exists(const fs::path& path) {
  std::error_code none;
  return fs::exists(path, none);
}

std::string open_fault() {
  const char* text = ::dlerror();
  return text != nullptr ? text : "the system does not say why";
}

/// TUTTI_CUDA_LIBRARY first, then an installation's lib folder, then the build's.
std::string library_path() {
  if (const char* given = std::getenv("TUTTI_CUDA_LIBRARY"); given != nullptr && *given != 0)
    return given;
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  const std::vector<std::string> places = {folder.parent_path() / "lib" / kLibrary,
                                           folder / kLibrary};
  for (const std::string& place : places)
    if (exists(place)) return place;
  throw Error(fmt::format(
      "Tutti's GPU library is not there (looked for {}); `./tutti build --cuda` builds it",
      listed(places, "and")));
}

/// To be called before any question about CUDA, since ATen looks for its CUDA part only once. The
/// file next to libtorch_cpu comes first, so that both are of one version.
void open_torch_cuda() {
  const std::string name = "libtorch_cuda.so", next_to_torch = torch_folder() + "/" + name;
  if (::dlopen((exists(next_to_torch) ? next_to_torch : name).c_str(), RTLD_NOW | RTLD_GLOBAL) !=
      nullptr)
    return;
  throw Error(fmt::format(
      "LibTorch's CUDA libraries cannot be opened ({}); `pip install torch=={}` brings them",
      open_fault(), TORCH_VERSION));
}

/// Why there is no driver: a container may have been started without its host's GPUs.
std::string no_driver() {
  if (exists(kDriverVersion))
    return "this container is not given its host's GPUs (no /dev/nvidiactl); start it with --gpus "
           "all";
  return "this host has no NVIDIA driver (no /dev/nvidiactl); run on a GPU host";
}

/// The devices as text, for the pipe between child and parent.
std::string to_text(const std::vector<DeviceInfo>& devices) {
  auto list = nlohmann::json::array();
  for (const DeviceInfo& d : devices) {
    list.push_back({{"ordinal", d.ordinal},
                    {"name", d.name},
                    {"uuid", d.uuid},
                    {"major", d.major},
                    {"minor", d.minor}});
    list.back().update(
        {{"multiprocessors", d.multiprocessors}, {"total", d.total_bytes}, {"free", d.free_bytes}});
    list.back().update({{"driver", d.driver}, {"runtime", d.runtime}});
    list.back().update({{"cudnn", d.cudnn}, {"cublas", d.cublas}, {"nccl", d.nccl}});
  }
  return list.dump();
}

/// The inverse of to_text. A missing field throws: both ends are the same program.
std::vector<DeviceInfo> from_text(const std::string& text) {
  std::vector<DeviceInfo> devices;
  for (const auto& d : nlohmann::json::parse(text)) {
    DeviceInfo& info = devices.emplace_back();
    info.ordinal = d.at("ordinal");
    info.name = d.at("name");
    info.uuid = d.at("uuid");
    info.major = d.at("major");
    info.minor = d.at("minor");
    info.multiprocessors = d.at("multiprocessors");
    info.total_bytes = d.at("total");
    info.free_bytes = d.at("free");

    info.driver = d.at("driver");
    info.runtime = d.at("runtime");
    info.cudnn = d.at("cudnn");
    info.cublas = d.at("cublas");
    info.nccl = d.at("nccl");
  }
  return devices;
}

}  // namespace

bool has_gpu_driver() { return exists("/dev/nvidiactl") || exists("/dev/dxg"); }

bool expects_gpu() { return has_gpu_driver() || exists(kDriverVersion); }

std::string torch_folder() {
  // Not loaded, only asked for: the process runs on it already.
  void* torch = ::dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  link_map* map = nullptr;
  if (torch == nullptr || ::dlinfo(torch, RTLD_DI_LINKMAP, &map) != 0) return {};
  const std::string folder = fs::path(map->l_name).parent_path();
  ::dlclose(torch);
  return folder;
}

const DeviceLibrary& open_device_library(const std::string& path) {
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw Error(fmt::format(
        "Tutti's GPU library {} cannot be opened ({}); `./tutti build --cuda` builds it", path,
        open_fault()));
  }

  // The symbol and the version are checked before anything is called through the table, whose
  // layout depends on them.
  const auto get =
      reinterpret_cast<const DeviceLibrary* (*)()>(::dlsym(handle, "tutti_device_library"));
  const DeviceLibrary* library = get != nullptr ? get() : nullptr;
  if (library == nullptr) {
    ::dlclose(handle);
    throw Error(fmt::format(
        "{} is not Tutti's GPU library: it has no tutti_device_library; `./tutti build --cuda` "
        "builds it",
        path));
  }

  if (const int version = library->version; version != DeviceLibrary::kVersion) {
    ::dlclose(handle);
    throw Error(fmt::format(
        "{} has version {} but this command needs version {}; `./tutti build --cuda` builds both "
        "alike",
        path, version, DeviceLibrary::kVersion));
  }
  return *library;
}

const DeviceLibrary& device_library() {
  static const DeviceLibrary& library = []() -> const DeviceLibrary& {
    // Our library is looked for first: its absence is the likelier fault, and opening LibTorch's
    // takes longer.
    const std::string path = library_path();
    open_torch_cuda();
    return open_device_library(path);
  }();
  return library;
}

DeviceProbe probe_devices(double seconds) {
  if (!has_gpu_driver()) return {{}, no_driver()};

  const ChildAnswer answer = in_child([] { return to_text(device_library().devices()); }, seconds);
  if (answer.end == ChildAnswer::End::kThrew) return {{}, answer.text};
  if (!answer.ok()) {
    return {{},
            fmt::format("the NVIDIA driver could not be asked: {}; see `nvidia-smi` and `dmesg`",
                        answer.text)};
  }

  // A throw is the library's own message; anything else is the driver's doing.
  DeviceProbe probe{from_text(answer.text), ""};
  if (probe.devices.empty())
    probe.reason = "the NVIDIA driver shows no GPU; see `nvidia-smi` and CUDA_VISIBLE_DEVICES";
  return probe;
}

// The same as TUTTI_CUDA_ARCHITECTURES in cmake/cuda.cmake: code for 8.0 runs on all 8.x, for 9.0a
// only on 9.0, for 10.0 on all 10.x.
std::string why_unsuited(const DeviceInfo& device) {
  const bool runs =
      device.major == 8 || (device.major == 9 && device.minor == 0) || device.major == 10;
  if (runs) return {};
  return fmt::format(
      "GPU {} ({}) has compute capability {}.{} and the kernels are built for 8.x, 9.0 and 10.x; "
      "leave "
      "it out of CUDA_VISIBLE_DEVICES",
      device.ordinal, device.name, device.major, device.minor);
}

void add_gpus(Machine& machine, DeviceKind device) {
  if (device == DeviceKind::kCpu) return;
  const DeviceProbe probe = probe_devices();
  machine.no_gpu = probe.reason;
  machine.gpus.clear();
  for (const DeviceInfo& info : probe.devices) {
    // One unsuited GPU makes all unusable, since ranks are spread over all that are visible; the
    // message says how to hide it.
    if (const std::string fault = why_unsuited(info); !fault.empty()) {
      machine.gpus.clear();
      machine.no_gpu = fault;
      return;
    }
    machine.gpus.push_back({info.name, info.total_bytes, info.free_bytes, info.major, info.minor});
  }
}

}  // namespace tutti
