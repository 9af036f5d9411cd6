// What a job may ask of the device that computes it, and of the ranks that share devices.
#include <fmt/format.h>

#include "config/job_check.h"
#include "config/schema.h"

namespace tutti {

void JobCheck::device(const Machine& machine) {
  precision(machine);
  const LayoutConfig& layout = job_.layout;
  if (job_.numerics.device == "cuda") {
    if (machine.gpus.empty()) {
      const std::string reason =
          machine.no_gpu.empty() ? "no GPU of this host is known; run on a GPU host" : machine.no_gpu;
      fault({"numerics.device"},
            fmt::format("numerics.device = \"cuda\" but {}, or set numerics.device = \"cpu\"", reason));
    }
    if (layout.workers == "thread") {
      fault({"layout.workers", "numerics.device"},
            "layout.workers = \"thread\" but numerics.device = \"cuda\": a device belongs to a process; use "
            "\"process\"");
    }
    if (layout.ranks > 1 && layout.transport != "nccl") {
      fault({"layout.transport", "numerics.device"},
            fmt::format("layout.transport = \"{}\" but numerics.device = \"cuda\": gradients lie in the GPUs' memory, "
                        "which only \"nccl\" carries",
                        layout.transport));
    }
    if (!layout.offload_folder.empty()) {
      fault({"layout.offload_folder", "numerics.device"},
            "layout.offload_folder is set but numerics.device = \"cuda\": offloaded values lie in the host's memory "
            "there, not in a file; leave it out");
    }
    return;
  }
  if (layout.transport == "nccl") {
    fault({"layout.transport", "numerics.device"},
          "layout.transport = \"nccl\" but numerics.device = \"cpu\": it carries GPUs' memory alone; use \"shm\", "
          "\"tcp\" or \"inproc\"");
  }
  for (const Key& key : keys()) {
    if (!key.gpu) continue;
    const auto origin = job_.origin.find(key.full_name());
    const bool said =
        origin != job_.origin.end() && (origin->second == "--set" || origin->second.find(':') != std::string::npos);
    if (!said && key.get(job_) == key.fallback) continue;
    fault({key.full_name().c_str()},
          fmt::format("{} = {} but numerics.device = \"cpu\": it is of a GPU alone; leave it "
                      "out",
                      key.full_name(), value_text(key.get(job_))));
  }
}

void JobCheck::precision(const Machine& machine) {
  const NumericsConfig& numerics = job_.numerics;
  const bool narrow = numerics.precision == "bfloat16" || numerics.precision == "float16";
  if (narrow && numerics.device == "cpu") {
    const auto origin = job_.origin.find("numerics.device");
    const bool chosen = origin != job_.origin.end() && origin->second == "resolved" && !machine.no_gpu.empty();
    const std::string text =
        fmt::format("numerics.precision = \"{}\" but numerics.device = \"cpu\"", numerics.precision);
    fault({"numerics.precision", "numerics.device"},
          chosen ? fmt::format("{}, because {}, or set numerics.precision = \"float32\"", text, machine.no_gpu)
                 : fmt::format("{}: 16 bits are of a GPU alone; use \"float32\"", text));
  }
  if (numerics.precision == "float16") return;
  for (const Key& key : keys()) {
    if (!key.float16 || key.get(job_) == key.fallback) continue;
    fault({key.full_name().c_str(), "numerics.precision"},
          fmt::format("{} = {} but numerics.precision = \"{}\": only float16 scales its loss", key.full_name(),
                      value_text(key.get(job_)), numerics.precision));
  }
}

}  // namespace tutti
