// What can be said of a layout that was simulated to somebody who wants a better one: why its ranks
// idle, and how large a micro-batch would still fit.
#include <fmt/format.h>

#include <algorithm>

#include "plan/make/pipeline_schedule.h"
#include "plan/search/choose.h"

namespace tutti {

/// The schedule's formula gives the part of the idle time that more micro-batches would make
/// smaller. Where that part is not most of it, lanes or stages are unequal.
std::string idle_warning(const Candidate& candidate) {
  constexpr double kMuch = 0.2;
  if (candidate.bubble <= kMuch) return "";
  const MeshOptions& o = candidate.options;
  const int stages = o.mesh.pipeline, lanes = (o.batch.lanes + o.mesh.data - 1) / o.mesh.data;
  const auto formula = [&](int micro_batches) {
    return stages > 1 ? bubble_formula(o.schedule, stages, o.chunks, lanes * micro_batches) : 0;
  };
  const std::string idle =
      fmt::format("its ranks idle for {:.0f} % of the step: ", 100 * candidate.bubble);

  // Too few micro-batches: the smallest number that brings the formula below `kMuch` is named.
  if (formula(o.batch.micro_batches) > candidate.bubble / 2) {
    int enough = o.batch.micro_batches;
    while (formula(enough) > kMuch) ++enough;

    const int passed = lanes * o.batch.micro_batches;
    const std::string more = enough > o.batch.micro_batches
                                 ? fmt::format(
                                       "where stages cost alike, train.micro_batches = {} (another "
                                       "job) brings it to a fifth",
                                       enough)
                                 : "more train.micro_batches (another job) idle less";
    return idle +
           fmt::format(
               "{} too few for {} stages, which wait for the first to arrive and the last to "
               "leave; {}; fewer ranks idle less, too",
               passed == 1 ? "1 micro-batch is" : fmt::format("{} micro-batches are", passed),
               stages, more);
  }

  // Unequal lanes explain more than unequal stages do, so they are looked at first.
  if (o.batch.lanes % o.mesh.data != 0)
    return idle + fmt::format(
                      "{} lanes are not shared out evenly over {} data ranks, and those with fewer "
                      "wait; a number of data ranks that divides train.lanes has none to wait for",
                      o.batch.lanes, o.mesh.data);
  return idle +
         (stages > 1
              ? "its stages take unequal time; fewer stages, or another layout.cut, are more alike"
              : "its ranks have unequal work");
}

int64_t largest_micro_batch(const MemoryForecast& now, int64_t micro_batch_size, int64_t memory) {
  // State does not grow with the micro-batch; borders, saved values, work and messages
  // do, in proportion.
  double fixed = 0;
  for (BufferKind kind : {BufferKind::kParameter, BufferKind::kGradient, BufferKind::kMoment})
    fixed += static_cast<double>(now.bytes[static_cast<size_t>(kind)]);
  const double grows =
      (static_cast<double>(now.total()) - fixed) / static_cast<double>(micro_batch_size);
  const double left = static_cast<double>(memory) - fixed;
  return left <= 0 ? 0 : static_cast<int64_t>(left / std::max(grows, 1.0));
}

}  // namespace tutti
