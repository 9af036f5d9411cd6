// What a rank will take of its device, known before it takes any of it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "device/reduction.h"
#include "engine/device/ddp.h"
#include "engine/device/feed.h"
#include "engine/device/mesh.h"
#include "engine/device/travel.h"
#include "plan/check/ddp.h"

namespace tutti {

namespace {

// The context, cuBLAS and cuDNN with their kernels; NCCL's kernels, and its buffers for a group: as seen on an H200.
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kLibraries = 700 * kMiB, kCollectives = 150 * kMiB, kMeeting = 175 * kMiB, kLink = 72 * kMiB;
constexpr int64_t kTables = kMiB, kPage = 4096;  // what kernels look up; a bucket's partial begins on a page

std::string gib(int64_t bytes) { return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30)); }

}  // namespace

int64_t pool_forecast(const Model& model, const ModelShape& shape) {
  int64_t saved = 0, work = 0;
  for (size_t b = 0; b < model.blocks.size(); ++b)
    for (size_t s = 0; s < model.blocks[b].segments.size(); ++s) {
      const Segment& segment = *model.blocks[b].segments[s];
      saved += shape.blocks[b].segments[s].saved_bytes - segment.saved_bytes();
      work = std::max(work, shape.blocks[b].segments[s].work_bytes - segment.work_bytes());
    }
  return saved + work;
}

DeviceForecast device_forecast(const Job& job, const Model& model, const ModelShape& shape, const Plan& plan,
                               int rank) {
  DeviceForecast forecast;
  forecast.plan = forecast_memory(plan.programs[rank]);
  if (precision_of(job.numerics) != Precision::kFloat32)
    for (const BlockShape& block : shape.blocks) forecast.low += 2 * block.unit_size;
  const GradientPlaces places = gradient_places(plan, shape);
  for (size_t b = 0; b < plan.buckets.size(); ++b)
    forecast.messages +=
        DeviceReduction::scratch_bytes(reduction_spec(plan, shape, places, static_cast<int>(b), job), rank);
  forecast.input = DeviceFeed::device_bytes(model, plan.programs[rank].lanes.size() * job.train.micro_batches);
  if (job.layout.graph && capture_faults(model).empty()) forecast.captured = pool_forecast(model, shape);
  forecast.libraries = kTables + kPage * static_cast<int64_t>(plan.buckets.size()) * partials_of(rank, plan) +
                       kLibraries + (plan.ranks > 1 ? kCollectives + kMeeting : 0);
  return forecast;
}

DeviceForecast device_forecast(const Job& job, const Model& model, const Plan& plan, const Plan& forward_plan,
                               const ModelShape& shape, const MeshOptions& options, int rank) {
  const Program &program = plan.programs[rank], &forward = forward_plan.programs[rank];
  DeviceForecast forecast;
  forecast.plan = forecast_memory(program);
  forecast.low = LowCopies::bytes(program, forward, precision_of(job.numerics));
  forecast.messages = DeviceTravel::scratch_bytes(Transfers(plan, shape, options), program);
  int64_t loads = 0;
  for (const Instruction& i : program.queues[0].instructions) loads += i.op == Op::kLoad ? 1 : 0;
  forecast.input = DeviceFeed::device_bytes(model, loads);
  if (job.layout.graph && capture_faults(model, job.layout).empty()) forecast.captured = aten_bytes(model, program);
  const MeshGroups::Count groups = MeshGroups::count(plan, forward_plan, options.mesh, rank);
  forecast.libraries = kTables + kLibraries + (groups.meetings > 0 ? kCollectives : 0) + kMeeting * groups.meetings +
                       kLink * groups.links;
  return forecast;
}

std::string memory_fault(const DeviceForecast& forecast, int64_t free, const DeviceShare& share,
                         const std::string& device) {
  if (share.bytes <= free) return {};
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
    if (holders[i].first > 0) largest.push_back(fmt::format("{} {}", holders[i].second, gib(holders[i].first)));
  const std::string ranks =
      share.ranks > 1 ? fmt::format("{} for {} ranks", gib(share.bytes), share.ranks) : gib(share.bytes);
  return fmt::format(
      "the job needs {} of {}, which has {} free; the largest parts of {}: {}. A smaller train.micro_batch_size "
      "with more train.micro_batches needs less (and is another job){}",
      ranks, device, gib(free), share.ranks > 1 ? "this rank" : "it", fmt::join(largest, ", "),
      forecast.captured > 0 ? ", as does layout.graph = false" : "");
}

}  // namespace tutti
