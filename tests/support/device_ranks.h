// Thread ranks that train on the host's memory as their device, for tests of what happens around
// steps.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/model_rules.h"
#include "launch/local.h"
#include "model/make_model.h"
#include "support/host_library.h"
#include "train/trainer.h"

namespace tutti::testing_support {

/// A job of thread ranks. Resolved for the CPU: what a job of the CPU may not say is set on it
/// afterwards. Unless it is said, the ZeRO stage is what `auto` is on a GPU.
inline Job device_job(const std::string& text, int ranks,
                      const std::vector<Setting>& settings = {}) {
  Job job = parse_job(text, "job", settings);
  job.numerics.device = DeviceKind::kCpu;
  if (job.layout.zero == kAutomatic) job.layout.zero = 0;
  job.layout.workers = Workers::kThread;
  job.layout.ranks = ranks;
  resolve(job, this_machine(), {});
  return job;
}

/// What a rank has when its body is called.
struct DeviceRank {
  Trainer& trainer;
  const Model& model;
  RankContext& context;
  Device& device;
  bool first() const { return context.rank == 0; }
};

using MakeDevice = std::function<std::unique_ptr<Device>()>;
inline std::unique_ptr<Device> host_memory() {
  return std::make_unique<HostDevice>(int64_t{1} << 40);
}

/// A trainer on every rank of the job, from `checkpoint` if that is not empty, and `body` with it.
inline LaunchResult on_device_ranks(const Job& job, const std::string& checkpoint,
                                    const std::function<void(DeviceRank&)>& body,
                                    const DeviceLibrary& library = host_library(),
                                    const std::function<Model(const Job&)>& make = make_model,
                                    const MakeDevice& make_device = host_memory) {
  LaunchOptions launch;
  launch.ranks = static_cast<int>(job.layout.ranks);
  launch.threads = true;
  return launch_local(launch, [&](RankContext& context) {
    RankDevice device{&library, make_device()};
    device.compute = device.device->make_stream();
    const Model model = make(job);
    Trainer trainer(job, model, context, checkpoint, {}, &device);
    DeviceRank rank{trainer, model, context, *device.device};
    try {
      body(rank);
    } catch (...) {
      context.failing();
      throw;
    }
  });
}

inline void expect_ok(const LaunchResult& result) {
  for (const std::string& failure : result.failures) ADD_FAILURE() << failure;
}

}  // namespace tutti::testing_support
