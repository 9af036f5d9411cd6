// A step on a device: the plan's queues become streams, its events the device's, and a steady step is captured once and
// launched again. What belongs to the engine is here; how input reaches the device is in engine/device/feed.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/library.h"
#include "engine/device/rank_device.h"
#include "engine/engine.h"
#include "plan/check/ddp.h"

namespace tutti {

Precision precision_of(const NumericsConfig& numerics);

/// What two devices must have in common to give the same bits: name, compute capability and library versions.
std::string describe_kind(const DeviceInfo& info);

/// How many ranks are on the same device as this one: rank r takes device r mod their number. (layout.hosts groups
/// ranks of one host.)
int ranks_on_device(const Job& job, int rank, int devices);

/// Why steps of this model cannot be captured and launched again, segment by segment; empty: they can.
std::vector<std::string> capture_faults(const Model& model);

/// Bytes of ATen's temporaries on a device, beside what segments declare: the dry run's measure.
int64_t pool_forecast(const Model& model, const ModelShape& shape);

/// Bytes that a rank will take of its device, by the plan's own account.
struct DeviceForecast {
  MemoryForecast plan;    ///< parameters, gradients, moments, saved, borders, work, as on the host
  int64_t low = 0;        ///< copies of the parameters in 16 bits
  int64_t messages = 0;   ///< what other ranks send
  int64_t input = 0;      ///< micro-batches of a step, and those of the next
  int64_t captured = 0;   ///< temporaries of the captured step, apart from those of the others
  int64_t libraries = 0;  ///< the driver's and the libraries' own, and small tables
  int64_t total() const { return plan.total() + low + messages + input + captured + libraries; }
};
DeviceForecast device_forecast(const Job& job, const Model& model, const ModelShape& shape, const Plan& plan, int rank);
/// What to say when `free` bytes are not enough for the ranks of a device; empty: they are. Names the largest holders
/// of a rank with that forecast and what would help.
std::string memory_fault(const DeviceForecast& forecast, int64_t free, const DeviceShare& share,
                         const std::string& device);

std::unique_ptr<Engine> make_device_engine(const EngineParts& parts, const RankDevice& device);

}  // namespace tutti
