// Makes one report of host and devices, then prints it for people or as JSON. Everything that is
// missing is listed with the command that mends it.
#include "app/doctor/doctor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "app/doctor/doctor_gpu.h"
#include "app/doctor/doctor_host.h"
#include "base/bytes.h"
#include "base/processor.h"
#include "device/library.h"

namespace tutti {

namespace {

struct Missing {
  std::string what, mend;
  bool needed = false;  ///< to train on the CPU
};

struct Report {
  HostReport host;
  DeviceProbe probe;
  std::vector<GpuRates> rates;  ///< of the probe's devices
  std::vector<Missing> missing;
  bool trains() const {
    return std::none_of(missing.begin(), missing.end(),
                        [](const Missing& one) { return one.needed; });
  }
};

constexpr double kGiB = 1 << 30;
constexpr double kGpuSeconds = 60;  // a device's measurements take a few

/// 13020 is 13.2.
std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// "what; how" as the two.
Missing missing_of(const std::string& sentence) {
  const size_t cut = sentence.rfind("; ");
  if (cut == std::string::npos) return {sentence, ""};
  return {sentence.substr(0, cut), sentence.substr(cut + 2)};
}

void find_missing_host(const HostReport& host, std::vector<Missing>& missing) {
  if (host.path > CodePath::kAvx2)
    missing.push_back({"this processor has no AVX2",
                       "its kernels are slow; x86-64 processors made since 2013 have it"});

  // Another LibTorch may well work, so it is told and stops nothing.
  if (!host.torch_version.empty() && !host.torch_version.starts_with(host.torch_built)) {
    missing.push_back({fmt::format("LibTorch is {}, but this command was built with {}",
                                   host.torch_version, host.torch_built),
                       fmt::format("`pip install torch=={}`", host.torch_built)});
  }

  // What a run needs beyond compute: a folder, memory, and files for its sockets.
  if (!host.runs_writable) {
    missing.push_back({fmt::format("runs cannot be written to {}", host.runs_folder),
                       "name a folder of your own: `tutti train --out FOLDER`", true});
  } else if (static_cast<double>(host.disk_free) < kGiB) {
    missing.push_back({fmt::format("only {} of disk are left for runs", bytes_text(host.disk_free)),
                       "name a folder elsewhere: `tutti train --out FOLDER`"});
  }
  if (const int64_t memory = std::min(host.memory_available, host.memory_limit);
      static_cast<double>(memory) < kGiB) {
    missing.push_back({fmt::format("only {} of memory may be used", bytes_text(memory)),
                       "free some, or raise the limit (`docker run --memory 8g`)"});
  }
  if (host.open_files >= 0 && host.open_files < 1024)
    missing.push_back(
        {fmt::format("a process may open only {} files", host.open_files), "`ulimit -n 65536`"});
}

void find_missing_gpu(const Report& report, std::vector<Missing>& missing) {
  // A host that has no GPU lacks nothing.
  if (!report.probe.reason.empty() && has_gpu_driver())
    missing.push_back(missing_of(report.probe.reason));
  for (size_t i = 0; i < report.probe.devices.size(); ++i) {
    const DeviceInfo& device = report.probe.devices[i];
    if (const std::string fault = why_unsuited(device); !fault.empty()) {
      missing.push_back(missing_of(fault));
    } else if (!report.rates[i].fault.empty()) {
      missing.push_back(
          {fmt::format("GPU {} could not be measured: {}", device.ordinal, report.rates[i].fault),
           "see `nvidia-smi` and `dmesg`"});
    }
  }

  // The libraries are the process's, so the first device tells of all.
  if (report.probe.devices.empty()) return;
  const DeviceInfo& first = report.probe.devices.front();
  for (const auto& [name, version] :
       {std::pair{"cuDNN", first.cudnn}, {"cuBLAS", first.cublas}, {"NCCL", first.nccl}})
    if (version.empty())
      missing.push_back({fmt::format("{} is not there", name),
                         fmt::format("`pip install torch=={}`", report.host.torch_built)});
  if (static_cast<double>(report.host.shm_size) < kGiB / 4) {
    missing.push_back({fmt::format("/dev/shm has only {}, through which NCCL connects ranks",
                                   bytes_text(report.host.shm_size)),
                       "`docker run --shm-size 1g`, or `mount -o remount,size=1g /dev/shm`"});
  }
}

void row(const char* name, const std::string& text) { fmt::print("{:11}{}\n", name, text); }

std::string cores_text(const HostReport& host) {
  const std::string all =
      fmt::format("{} core{}", host.cores_online, host.cores_online == 1 ? "" : "s");
  if (host.cores >= host.cores_online) return all;
  const bool quota = host.cores < host.cores_by_affinity;
  return fmt::format("{}, of which this process may use {} ({})", all, host.cores,
                     quota ? "the quota of its control group" : "its affinity");
}

std::string limit_text(int64_t limit) { return limit < 0 ? "no limit" : bytes_text(limit); }

void print_host(const HostReport& host) {
  row("processor", host.processor.empty() ? "unknown" : host.processor);
  row("", fmt::format("{}; {}", cores_text(host),
                      host.path == CodePath::kAvx512 ? "AVX2 and AVX-512"
                      : host.path == CodePath::kAvx2 ? "AVX2, no AVX-512"
                                                     : "neither AVX2 nor AVX-512"));

  // Rates are there if they could be measured.
  if (host.matmul_flops > 0) {
    row("", fmt::format("matmul {} per core, memory {} by all cores (read and written)",
                        rate_text(host.matmul_flops, "FLOP"), rate_text(host.copy_bytes, "B")));
  }

  // Memory and disk: what there is, and what this process may use of it.
  row("memory",
      fmt::format("{}, {} free{}", bytes_text(host.memory), bytes_text(host.memory_available),
                  host.memory_limit < host.memory
                      ? fmt::format("; its control group allows {}", bytes_text(host.memory_limit))
                      : ""));
  row("disk", fmt::format("{} free for runs, in {}", bytes_text(host.disk_free), host.runs_folder));
  row("limits",
      fmt::format("{} open files, {} of locked memory, {}",
                  host.open_files < 0 ? "any number of" : fmt::format("{}", host.open_files),
                  limit_text(host.locked_memory),
                  host.shm_size > 0 ? "/dev/shm of " + bytes_text(host.shm_size) : "no /dev/shm"));
  row("LibTorch",
      fmt::format("{} in {}", host.torch_version.empty() ? host.torch_built : host.torch_version,
                  host.torch_folder));
}

void print_gpu(const DeviceInfo& device, const GpuRates& rates, size_t devices) {
  row(fmt::format("GPU {}", device.ordinal).c_str(),
      fmt::format("{}, {}, {} free; compute capability {}.{}, {} multiprocessors", device.name,
                  bytes_text(device.total_bytes), bytes_text(device.free_bytes), device.major,
                  device.minor, device.multiprocessors));
  if (!rates.fault.empty()) return;
  row("", fmt::format("matmul {} in float32, {} in bfloat16", rate_text(rates.float32, "FLOP"),
                      rate_text(rates.bfloat16, "FLOP")));
  row("", fmt::format("memory {} (read and written); link {} to it, {} back",
                      rate_text(rates.copy, "B"), rate_text(rates.to_device, "B"),
                      rate_text(rates.to_host, "B")));
  if (devices < 2) return;
  row("", rates.peers.empty()
              ? "reaches no other GPU's memory directly: what they exchange goes through the host"
              : fmt::format("reaches the memory of GPU {} directly", fmt::join(rates.peers, ", ")));
}

void print_gpus(const Report& report) {
  const auto& devices = report.probe.devices;
  if (devices.empty() && has_gpu_driver())
    return row("GPU", "none that can be used, though there is a driver: see below");
  if (devices.empty()) return row("GPU", "none: " + report.probe.reason);
  for (size_t i = 0; i < devices.size(); ++i)
    print_gpu(devices[i], report.rates[i], devices.size());
  const auto version = [](const std::string& text) { return text.empty() ? "missing" : text; };
  const DeviceInfo& first = devices.front();
  row("CUDA", fmt::format("driver for {}, runtime {}, cuDNN {}, cuBLAS {}, NCCL {}",
                          cuda_version(first.driver), cuda_version(first.runtime),
                          version(first.cudnn), version(first.cublas), version(first.nccl)));
}

void print(const Report& report) {
  print_host(report.host);
  print_gpus(report);
  fmt::print("\n");
  for (const Missing& one : report.missing) {
    row("missing", one.what);
    if (!one.mend.empty()) row("", "to mend it: " + one.mend);
  }
  if (!report.missing.empty()) fmt::print("\n");
  const bool gpu = !report.probe.devices.empty() &&
                   std::all_of(report.probe.devices.begin(), report.probe.devices.end(),
                               [](const auto& d) { return why_unsuited(d).empty(); });
  fmt::print("{}\n",
             !report.trains() ? "Jobs cannot be trained here as it is."
             : gpu ? "Jobs train on the GPU here, and on the CPU with numerics.device = \"cpu\"."
                   : "Jobs train on the CPU here.");
}

nlohmann::ordered_json host_json(const HostReport& host) {
  return {{"processor", host.processor},
          {"cores_online", host.cores_online},
          {"cores_by_affinity", host.cores_by_affinity},
          {"cores", host.cores},
          {"isa", name_of(host.path)},
          {"matmul_flops", host.matmul_flops},
          {"copy_bytes_per_second", host.copy_bytes},
          {"memory_bytes", host.memory},
          {"memory_available_bytes", host.memory_available},
          {"memory_limit_bytes", host.memory_limit},
          {"runs_folder", host.runs_folder},
          {"disk_free_bytes", host.disk_free},
          {"open_files", host.open_files},
          {"locked_memory_bytes", host.locked_memory},
          {"shm_bytes", host.shm_size},
          {"libtorch", host.torch_version.empty() ? host.torch_built : host.torch_version},
          {"libtorch_folder", host.torch_folder}};
}

nlohmann::ordered_json gpu_json(const DeviceInfo& device, const GpuRates& rates) {
  return {{"ordinal", device.ordinal},
          {"name", device.name},
          {"uuid", device.uuid},
          {"compute_capability", fmt::format("{}.{}", device.major, device.minor)},
          {"multiprocessors", device.multiprocessors},
          {"memory_bytes", device.total_bytes},
          {"memory_free_bytes", device.free_bytes},
          {"cuda_driver", cuda_version(device.driver)},
          {"cuda_runtime", cuda_version(device.runtime)},
          {"cudnn", device.cudnn},
          {"cublas", device.cublas},
          {"nccl", device.nccl},
          {"float32_flops", rates.float32},
          {"bfloat16_flops", rates.bfloat16},
          {"copy_bytes_per_second", rates.copy},
          {"to_device_bytes_per_second", rates.to_device},
          {"to_host_bytes_per_second", rates.to_host},
          {"peers", rates.peers},
          {"fault", rates.fault}};
}

void print_json(const Report& report) {
  nlohmann::ordered_json all{{"host", host_json(report.host)}};
  all["gpus"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < report.probe.devices.size(); ++i)
    all["gpus"].push_back(gpu_json(report.probe.devices[i], report.rates[i]));
  all["no_gpu"] = report.probe.reason;
  all["missing"] = nlohmann::ordered_json::array();
  for (const Missing& one : report.missing)
    all["missing"].push_back({{"what", one.what}, {"mend", one.mend}, {"needed", one.needed}});
  all["trains"] = report.trains();
  fmt::print("{}\n", all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace

int doctor_command(bool json) {
  Report report;
  // Everything that forks comes before ATen's first call and the first thread.
  report.probe = probe_devices();
  const int devices = static_cast<int>(report.probe.devices.size());
  for (const DeviceInfo& device : report.probe.devices) {
    const std::string unsuited = why_unsuited(device);
    report.rates.push_back(unsuited.empty() ? measure_gpu(device, devices, kGpuSeconds)
                                            : GpuRates{.fault = unsuited});
  }
  report.host = look_at_host();
  measure_host(report.host);
  find_missing_host(report.host, report.missing);
  find_missing_gpu(report, report.missing);
  if (json) {
    print_json(report);
  } else {
    print(report);
  }
  return report.trains() ? 0 : 1;
}

}  // namespace tutti
