#include "app/layouts/verify_layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/error.h"
#include "config/check.h"
#include "model/core/wiring.h"
#include "optim/optimizer.h"
#include "plan/make/pipeline_schedule.h"
#include "train/rank_plan.h"

namespace tutti {

namespace {

struct Row {
  int64_t ranks;
  const char *workers, *transport;
  bool overlap;
  int64_t hosts = 1;
  const char* fold = "local";
  const char* partition = "lanes";
  bool graph = true, prefetch = true;
};

// Each mechanism that could betray the promise appears in at least one row.
constexpr Row kHostRows[] = {
    {1, "process", "shm", true},
    {1, "thread", "inproc", false},
    {2, "process", "shm", true},
    {2, "process", "shm", false},
    {2, "process", "tcp", true},
    {2, "thread", "inproc", true},
    {2, "process", "shm", true, 1, "root"},
    {3, "process", "shm", true},
    {3, "process", "tcp", false},
    {3, "thread", "inproc", true},
    {4, "process", "shm", true},
    {4, "process", "shm", true, 2},
    {4, "process", "tcp", true},
    {4, "thread", "inproc", false},
    {4, "process", "tcp", true, 1, "root"},
    {8, "process", "shm", true},
    {8, "process", "tcp", true},
    {8, "thread", "inproc", true},
    {8, "process", "shm", false, 2},
    {1, "process", "shm", true, 1, "local", "even"},
    {2, "process", "shm", true, 1, "local", "round-robin"},
    {3, "process", "tcp", true, 1, "local", "hash"},
    {4, "thread", "inproc", true, 1, "local", "even"},
};

// Ranks that are more than the GPUs share them. The first row comes twice: a run repeats itself.
constexpr Row kDeviceRows[] = {
    {1, "process", "nccl", true},
    {1, "process", "nccl", true},
    {1, "process", "nccl", true, 1, "local", "lanes", false, true},
    {1, "process", "nccl", true, 1, "local", "lanes", true, false},
    {1, "process", "nccl", false, 1, "local", "even", false, false},
    {2, "process", "nccl", true},
    {2, "process", "nccl", true, 1, "local", "lanes", false, true},
    {2, "process", "nccl", false, 1, "local", "lanes", true, false},
    {2, "process", "nccl", true, 1, "root", "round-robin", true, true},
    {4, "process", "nccl", true},
    {4, "process", "nccl", true, 1, "local", "lanes", false, false},
    {4, "process", "nccl", false, 1, "root", "lanes", true, true},
};

LayoutConfig layout_of(LayoutConfig layout, const Row& row) {
  layout.ranks = row.ranks;
  layout.workers = row.workers;
  layout.transport = row.transport;
  layout.overlap = row.overlap;
  layout.hosts = row.hosts;
  layout.fold = row.fold;
  layout.partition = row.partition;
  layout.graph = row.graph;
  layout.prefetch = row.prefetch;
  layout.zero = 0;
  return layout;
}

/// Rows of a sweep. What takes turns does so by counters of its own, so that no two go in step for
/// long.
class Sweep {
 public:
  explicit Sweep(const Job& job)
      : base_(job.layout),
        lanes_(job.train.lanes),
        slices_(job.train.tensor_slices),
        device_(job.numerics.device == "cuda"),
        cut_(job.model.kind == "gpt" ? "blocks.0" : "") {
    base_.hosts = 1, base_.partition = "lanes", base_.fold = "local", base_.zero = 0;
  }

  std::vector<LayoutConfig> run() {
    alone();
    for (int64_t tensor : kSizes)
      for (int64_t pipeline : kSizes)
        for (int64_t data : kSizes) {
          const int64_t ranks = data * tensor * pipeline;
          if (ranks == 1 || ranks > (device_ ? 4 : 8) || data > lanes_ || tensor > slices_)
            continue;
          mesh(data, tensor, pipeline);
        }
    return std::move(rows_);
  }

 private:
  static constexpr int64_t kSizes[] = {1, 2, 3, 4, 8};
  static constexpr const char* kSchedules[] = {"1f1b", "gpipe", "interleaved", "zero-bubble",
                                               "zbv"};
  static constexpr const char* kRecomputes[] = {"none", "full", "none", "selective"};
  static constexpr const char* kOffloads[] = {"none", "none", "none", "none", "optimizer"};

  template <size_t N>
  static const char* turn(const char* const (&names)[N], size_t at) {
    return names[at % N];
  }

  LayoutConfig meshed(int64_t data, int64_t tensor, int64_t pipeline) {
    LayoutConfig row = base_;
    row.ranks = data * tensor * pipeline;
    row.tensor = tensor, row.pipeline = pipeline;
    return row;
  }

  void alone() {
    for (const char* recompute : {"selective", "full"}) {
      LayoutConfig row = meshed(1, 1, 1);
      row.recompute = recompute;
      add(row);
    }
    for (const char* offload : {"optimizer", "all"}) {
      LayoutConfig row = meshed(1, 1, 1);
      row.offload = offload;
      add(row);
    }
    // By hand, as uneven as can be.
    LayoutConfig split = meshed(1, 1, 2);
    split.cut = cut_;
    if (!cut_.empty()) add(split);
  }

  /// All where there are stages alone; else one by turns, and first the one that any number of
  /// layers allows.
  std::vector<std::string> schedules_of(const LayoutConfig& row, bool first) {
    if (row.pipeline == 1) return {row.schedule};
    if (row.ranks == row.pipeline) return {std::begin(kSchedules), std::end(kSchedules)};
    std::vector<std::string> schedules{turn(kSchedules, schedules_++)};
    if (first && schedules[0] != kSchedules[0]) schedules.insert(schedules.begin(), kSchedules[0]);
    return schedules;
  }

  void mesh(int64_t data, int64_t tensor, int64_t pipeline) {
    for (int64_t zero = 0; zero <= (data > 1 ? 3 : 0); ++zero) {
      LayoutConfig row = meshed(data, tensor, pipeline);
      row.zero = zero;
      if (zero == 0 && tensor * pipeline == 1) {
        row.fold = "owner";
        add(row);
        continue;
      }
      for (const std::string& schedule : schedules_of(row, zero == 0)) {
        row.schedule = schedule;
        row.in_flight =
            pipeline > 1 && splits_backward(schedule) && fitted_++ % 3 == 1 ? pipeline + 1 : 0;
        row.recompute = turn(kRecomputes, recomputes_++);
        row.offload = turn(kOffloads, offloads_++);
        if (zero == 3) row.depth = 1 + static_cast<int64_t>(depths_++ % 2);
        add(row);
      }
      row.offload = "none";
      if (data % 2 == 0 && data > 2) {
        row.hosts = data / 2 * pipeline;  // of two data ranks: sums have two levels
        row.shards = zero > 0 ? 2 : 0;    // slices inside of a host, replicas between them
        add(row);
        row.shards = 0;  // slices over hosts
        if (zero == 3) add(row);
        row.hosts = 1;
      }
      if (zero > 1 && tensor * pipeline == 1) {
        row.fold = "owner";
        add(row);
      }
    }
  }

  void add(LayoutConfig row) {
    const size_t at = rows_.size();
    row.overlap = at % 3 != 1;
    if (device_) {
      row.workers = "process", row.transport = "nccl";
    } else {
      // Threads start fastest.
      row.workers = at % 4 < 2 ? "thread" : "process";
      row.transport = at % 8 == 1 || at % 8 == 6 ? "tcp"
                      : row.workers == "thread"  ? "inproc"
                                                 : "shm";
    }
    rows_.push_back(std::move(row));
  }

  LayoutConfig base_;
  const int64_t lanes_, slices_;
  const bool device_;
  const std::string cut_;  // where a second stage may begin; empty: blocks have names of their own
  std::vector<LayoutConfig> rows_;
  size_t schedules_ = 0, recomputes_ = 0, offloads_ = 0, depths_ = 0, fitted_ = 0;
};

}  // namespace

std::vector<LayoutConfig> verify_layouts(const Job& job) {
  std::vector<LayoutConfig> layouts;
  for (const Row& row :
       job.numerics.device == "cuda" ? std::span<const Row>(kDeviceRows) : kHostRows)
    if (row.ranks <= job.train.lanes) layouts.push_back(layout_of(job.layout, row));
  const auto sweep = Sweep(job).run();
  layouts.insert(layouts.end(), sweep.begin(), sweep.end());
  return layouts;
}

std::vector<std::string> layout_faults(const Job& job, const std::vector<LayoutConfig>& layouts,
                                       const Machine& machine, const MakeModel& make_model) {
  const Model model = make_model(job);
  const ModelShape shape = describe(model);
  const auto slots = static_cast<int>(make_optimizer(job.train)->slots().size());
  std::string on_threads;
  try {
    check_thread_ranks(model);
  } catch (const Error& e) {
    on_threads = e.what();
  }
  std::vector<std::string> all;
  for (const LayoutConfig& layout : layouts) {
    Job asked = job;
    asked.layout = layout;
    std::vector<std::string> faults = faults_of(asked, machine);
    if (faults.empty()) faults = mesh_faults(shape, mesh_options(asked, shape, slots));
    if (layout.workers == "thread" && !on_threads.empty()) faults.push_back(on_threads);
    all.push_back(faults.empty() ? "" : faults.front());
  }
  return all;
}

}  // namespace tutti
