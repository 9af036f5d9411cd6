// Sizes come from the functions that the memory itself is sized by. What libraries take cannot be
// computed, so it was measured.
#include "engine/device/forecast.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/bytes.h"
#include "engine/device/device_backend.h"
#include "engine/device/device_feed.h"
#include "engine/device/device_travel.h"
#include "engine/device/kind.h"

namespace tutti {

namespace {

// Bytes as seen on an H200: the context, cuBLAS and cuDNN with their kernels; NCCL's kernels; and
// its buffers per group.
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kLibraries = 700 * kMiB, kCollectives = 150 * kMiB, kMeeting = 175 * kMiB,
                  kLink = 72 * kMiB;
constexpr int64_t kTables = kMiB;  // the tables that kernels look up

}  // namespace

DeviceForecast device_forecast(const Job& job, const Model& model, const Plan& plan,
                               const Plan& forward_plan, int rank) {
  const Program &program = plan.programs[rank], &forward = forward_plan.programs[rank];
  DeviceForecast forecast;
  forecast.plan = forecast_memory(program);
  forecast.low = LowCopies::bytes(program, forward, job.numerics.precision);
  forecast.messages = DeviceTravel::scratch_bytes(plan, program);

  int64_t loads = 0;
  for (const Instruction& i : program.queues[0].instructions) loads += i.op == Op::kLoad ? 1 : 0;
  forecast.input = DeviceFeed::device_bytes(model, loads);

  // A captured step keeps its temporaries, apart from those of steps that are issued singly.
  if (job.layout.graph && capture_faults(model, job.layout).empty())
    forecast.captured = aten_bytes(model, program);

  // NCCL loads its kernels with the first group.
  const DeviceGroups::Count groups = DeviceGroups::count(plan, forward_plan, rank);
  forecast.libraries = kTables + kLibraries + (groups.meetings > 0 ? kCollectives : 0) +
                       kMeeting * groups.meetings + kLink * groups.links;
  return forecast;
}

std::string memory_fault(const DeviceForecast& forecast, int64_t free, const DeviceShare& share,
                         const std::string& device) {
  if (share.bytes <= free) return {};

  // The four largest parts are named, since they say what to change.
  std::vector<std::pair<int64_t, std::string>> holders;
  for (int k = 0; k < kBufferKinds; ++k)
    holders.emplace_back(forecast.plan.bytes[k], kind_name(static_cast<BufferKind>(k)));
  holders.emplace_back(forecast.low, "low copies");
  holders.emplace_back(forecast.messages, "messages");
  holders.emplace_back(forecast.input, "input");
  holders.emplace_back(forecast.captured, "captured temporaries");
  holders.emplace_back(forecast.libraries, "libraries");
  std::sort(holders.rbegin(), holders.rend());
  std::vector<std::string> largest;
  for (size_t i = 0; i < 4; ++i)
    if (holders[i].first > 0)
      largest.push_back(fmt::format("{} {}", holders[i].second, bytes_text(holders[i].first)));

  // Ranks that share a device take it together, so the message has the bytes of all.
  const std::string ranks =
      share.ranks > 1 ? fmt::format("{} for {} ranks", bytes_text(share.bytes), share.ranks)
                      : bytes_text(share.bytes);
  return fmt::format(
      "the job needs {} of {}, which has {} free; the largest parts of {}: {}. A smaller "
      "train.micro_batch_size "
      "with more train.micro_batches needs less (and is another job){}",
      ranks, device, bytes_text(free), share.ranks > 1 ? "this rank" : "it",
      fmt::join(largest, ", "), forecast.captured > 0 ? ", as does layout.graph = false" : "");
}

}  // namespace tutti
