// What a rank will take of its device, known before it takes any of it.
#pragma once

#include <string>

#include "config/job.h"
#include "engine/device/rank_device.h"
#include "model/core/segment.h"
#include "plan/ir/plan_memory.h"

namespace tutti {

/// Bytes that a rank will take of its device, by the plan's own account.
struct DeviceForecast {
  MemoryForecast plan;    ///< parameters, gradients, moments, saved, borders, work, as on the host
  int64_t low = 0;        ///< copies of the parameters in 16 bits
  int64_t messages = 0;   ///< what other ranks send
  int64_t input = 0;      ///< micro-batches: where a step reads them, and two staging buffers
  int64_t captured = 0;   ///< temporaries of the captured step, apart from those of the others
  int64_t libraries = 0;  ///< the driver's and the libraries' own, and small tables
  int64_t total() const { return plan.total() + low + messages + input + captured + libraries; }
};
DeviceForecast device_forecast(const Job& job, const Model& model, const Plan& plan,
                               const Plan& forward_plan, int rank);
/// What to say when `free` bytes are not enough for the ranks of a device; empty if they are. Names
/// the largest parts of a rank with that forecast, and what would help.
std::string memory_fault(const DeviceForecast& forecast, int64_t free, const DeviceShare& share,
                         const std::string& device);

}  // namespace tutti
