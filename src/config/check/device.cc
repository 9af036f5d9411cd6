// What a job may ask of the device that computes it, and of the ranks that share devices.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/check/job_check.h"
#include "config/job_parts.h"
#include "config/schema.h"

namespace tutti {

namespace {

bool is_narrow(const Job& job) {
  return job.numerics.precision == Precision::kBfloat16 ||
         job.numerics.precision == Precision::kFloat16;
}

/// Whether somebody wrote the key down, with whatever value.
bool is_said(const Key& key, const Job& job) { return job.origin_of(key.full_name()).is_said(); }

bool is_resolved(const char* key, const Job& job) {
  return job.origin_of(key).kind == Origin::Kind::kResolved;
}

/// All that a job must say, and leave out, to be computed by a CPU: whoever does so is not refused
/// again.
std::string way_to_cpu(const Job& job) {
  std::vector<std::string> set, without;
  const auto to = [&](const char* key, const char* value) {
    set.push_back(fmt::format("{} = \"{}\"", key, value));
  };

  // What is of a GPU alone goes with it; a loss scale goes with the 16 bits that need it.
  const bool cuda = job.numerics.device == DeviceKind::kCuda;
  if (cuda) to("numerics.device", "cpu");
  if (is_narrow(job)) to("numerics.precision", "float32");
  for (const Key& key : keys()) {
    if (key.float16 && key.get(job) != key.fallback)
      set.push_back(fmt::format("{} = {}", key.full_name(), value_text(key.fallback)));
    if (key.gpu && cuda && (is_said(key, job) || key.get(job) != key.fallback))
      without.push_back(key.full_name());
  }

  // A transport that nobody named follows the device by itself.
  const bool chosen = is_resolved("layout.transport", job);
  if (cuda && part_named<TransportPart>(job.layout.transport).gpu && !chosen)
    to("layout.transport", "auto");
  const std::string left =
      without.empty() ? "" : fmt::format(", and leave out {}", fmt::join(without, " and "));
  return fmt::format("set {}{}", fmt::join(set, " and "), left);
}

}  // namespace

void JobCheck::device(const Machine& machine) {
  precision(machine);
  const LayoutConfig& layout = job_.layout;
  if (job_.numerics.device == DeviceKind::kCuda) {
    if (machine.gpus.empty()) {
      const std::string reason = machine.no_gpu.empty()
                                     ? "no GPU of this host is known; run on a GPU host"
                                     : machine.no_gpu;
      fault({"numerics.device"},
            fmt::format("numerics.device = \"cuda\" but {}, or {}", reason, way_to_cpu(job_)));
    }

    // A process has one device, and the optimizer must have a kernel for it.
    if (layout.workers == Workers::kThread) {
      fault({"layout.workers", "numerics.device"},
            "layout.workers = \"thread\" but numerics.device = \"cuda\": a device belongs to a "
            "process; use \"process\"");
    }
    if (!part_named<OptimizerPart>(job_.train.optimizer).gpu) {
      fault({"train.optimizer", "numerics.device"},
            fmt::format(
                "train.optimizer = \"{}\" but numerics.device = \"cuda\": GPUs have no kernel of "
                "it; {}",
                job_.train.optimizer, way_to_cpu(job_)));
    }

    // Ranks on GPUs meet in the GPUs' memory, and offload to the memory of their host.
    const auto gpu_transports = names_where<TransportPart>(&TransportPart::gpu);
    if (layout.ranks > 1 && !part_named<TransportPart>(layout.transport).gpu) {
      fault({"layout.transport", "numerics.device"},
            fmt::format("layout.transport = \"{}\" but numerics.device = \"cuda\": gradients are "
                        "in the GPUs' memory, which only {} carries",
                        layout.transport, quoted_list(gpu_transports, "and")));
    }
    if (!layout.offload_folder.empty()) {
      fault({"layout.offload_folder", "numerics.device"},
            "layout.offload_folder is set but numerics.device = \"cuda\": offloaded values are in "
            "the host's memory there, not in a file; leave it out");
    }
    return;
  }

  // On the CPU neither a transport nor a key of GPUs has a meaning.
  if (part_named<TransportPart>(layout.transport).gpu) {
    fault({"layout.transport", "numerics.device"},
          fmt::format("layout.transport = \"{}\" but numerics.device = \"cpu\": it carries GPUs' "
                      "memory alone; use {}",
                      layout.transport, connecting(layout.workers)));
  }
  for (const Key& key : keys()) {
    if (!key.gpu || (!is_said(key, job_) && key.get(job_) == key.fallback)) continue;
    fault({key.full_name().c_str()},
          fmt::format("{} = {} but numerics.device = \"cpu\": it is of a GPU alone; leave it out",
                      key.full_name(), value_text(key.get(job_))));
  }
}

void JobCheck::precision(const Machine& machine) {
  const NumericsConfig& numerics = job_.numerics;
  if (is_narrow(job_) && numerics.device == DeviceKind::kCpu) {
    const bool chosen = is_resolved("numerics.device", job_) && !machine.no_gpu.empty();
    const std::string text = fmt::format(
        "numerics.precision = \"{}\" but numerics.device = \"cpu\"", numerics.precision);
    fault({"numerics.precision", "numerics.device"},
          chosen ? fmt::format("{}, because {}, or {}", text, machine.no_gpu, way_to_cpu(job_))
                 : fmt::format("{}: 16 bits are of a GPU alone; {}", text, way_to_cpu(job_)));
  }

  // Only float16 has a loss scale, so the keys of the loss scale need it.
  if (numerics.precision == Precision::kFloat16) return;
  for (const Key& key : keys()) {
    if (!key.float16 || key.get(job_) == key.fallback) continue;
    fault({key.full_name().c_str(), "numerics.precision"},
          fmt::format("{} = {} but numerics.precision = \"{}\": only float16 scales its loss",
                      key.full_name(), value_text(key.get(job_)), numerics.precision));
  }
}

}  // namespace tutti
