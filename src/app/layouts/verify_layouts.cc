// Two kinds of rows: data parallelism is listed by hand, one row per mechanism, and meshes are
// swept by a builder whose other choices take turns.
#include "app/layouts/verify_layouts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "base/error.h"
#include "base/processor.h"
#include "config/check/faults.h"
#include "config/isa.h"
#include "config/job_parts.h"
#include "model/core/wiring.h"
#include "model/rules/rules.h"
#include "optim/optimizer.h"
#include "plan/make/pipeline_schedule.h"
#include "train/rank_plan.h"

namespace tutti {

namespace {

/// How ranks of a row are connected: as they are if nobody says it, or by messages alone.
enum class Connected { kPlainly, kByMessages };

/// What the kernels of a row's ranks use: what they would, any processor's code, or each rank
/// another of those that this processor can run.
enum class Instructions { kFastest, kAnyProcessors, kMixed };

struct Row {
  int64_t ranks = 1;
  Workers workers = Workers::kProcess;
  Connected connected = Connected::kPlainly;
  bool overlap = true;
  int64_t hosts = 1;
  FoldKind fold = FoldKind::kLocal;
  PartitionKind partition = PartitionKind::kLanes;
  bool graph = true, prefetch = true;
  Instructions instructions = Instructions::kFastest;
};

using enum Instructions;
using enum Workers;
using enum FoldKind;
using enum PartitionKind;
using enum Connected;

// Each mechanism that could betray the promise appears in at least one row.
constexpr Row kHostRows[] = {
    {.ranks = 1},
    {.ranks = 1, .workers = kThread, .overlap = false},
    {.ranks = 2},
    {.ranks = 2, .overlap = false},
    {.ranks = 2, .connected = kByMessages},
    {.ranks = 2, .workers = kThread},
    {.ranks = 2, .fold = kRoot},
    {.ranks = 3},
    {.ranks = 3, .connected = kByMessages, .overlap = false},
    {.ranks = 3, .workers = kThread},
    {.ranks = 4},
    {.ranks = 4, .hosts = 2},
    {.ranks = 4, .connected = kByMessages},
    {.ranks = 4, .workers = kThread, .overlap = false},
    {.ranks = 4, .connected = kByMessages, .fold = kRoot},
    {.ranks = 8},
    {.ranks = 8, .connected = kByMessages},
    {.ranks = 8, .workers = kThread},
    {.ranks = 8, .overlap = false, .hosts = 2},
    {.ranks = 1, .partition = kEven},
    {.ranks = 2, .partition = kRoundRobin},
    {.ranks = 3, .connected = kByMessages, .partition = kHash},
    {.ranks = 4, .workers = kThread, .partition = kEven},
    {.ranks = 1, .instructions = kAnyProcessors},
    {.ranks = 3, .instructions = kMixed},
    {.ranks = 4, .connected = kByMessages, .instructions = kMixed},
};

// Ranks that are more than the GPUs share them. The first row comes twice: a run repeats itself.
constexpr Row kDeviceRows[] = {
    {.ranks = 1},
    {.ranks = 1},
    {.ranks = 1, .graph = false},
    {.ranks = 1, .prefetch = false},
    {.ranks = 1, .overlap = false, .partition = kEven, .graph = false, .prefetch = false},
    {.ranks = 2},
    {.ranks = 2, .graph = false},
    {.ranks = 2, .overlap = false, .prefetch = false},
    {.ranks = 2, .fold = kRoot, .partition = kRoundRobin},
    {.ranks = 4},
    {.ranks = 4, .graph = false, .prefetch = false},
    {.ranks = 4, .overlap = false, .fold = kRoot},
};

/// The transport that has no windows, or the one that `auto` is.
std::string transport_of(Connected connected, bool gpu, Workers workers) {
  if (connected == kPlainly) return std::string(automatic_transport(gpu, workers));
  return std::string(first_where<TransportPart>(
      [&](const TransportPart& part) { return connects(part, workers) && !part.windows; }));
}

/// "avx512,avx2,portable,avx512" for 4 ranks of a processor that has all of them.
std::string mixed_isa(int64_t ranks) {
  std::vector<std::string_view> can, of_ranks;
  for (const Isa isa : {Isa::kAvx512, Isa::kAvx2, Isa::kPortable})
    if (missing_isa(isa, fastest_path()).empty()) can.push_back(name_of(isa));
  for (int64_t r = 0; r < ranks; ++r) of_ranks.push_back(can[static_cast<size_t>(r) % can.size()]);
  return fmt::format("{}", fmt::join(of_ranks, ","));
}

LayoutConfig layout_of(LayoutConfig layout, const Row& row, bool gpu) {
  layout.ranks = row.ranks;
  layout.workers = row.workers;
  layout.transport = transport_of(row.connected, gpu, row.workers);
  layout.overlap = row.overlap;
  layout.hosts = row.hosts;
  layout.fold = row.fold;
  layout.partition = row.partition;
  layout.graph = row.graph;
  layout.prefetch = row.prefetch;
  layout.zero = 0;
  layout.isa = row.instructions == kMixed           ? mixed_isa(row.ranks)
               : row.instructions == kAnyProcessors ? std::string(name_of(Isa::kPortable))
                                                    : std::string(name_of(Isa::kAuto));
  return layout;
}

/// The transports of the host that no row above names, each with several ranks.
void add_other_transports(const Job& job, std::vector<LayoutConfig>& layouts) {
  for (const TransportPart& part : parts<TransportPart>()) {
    const Workers workers = part.processes ? kProcess : kThread;
    const auto named = [&](const LayoutConfig& row) { return row.transport == part.name; };
    if (part.gpu || std::any_of(layouts.begin(), layouts.end(), named)) continue;
    LayoutConfig layout = layout_of(
        job.layout, {.ranks = std::min<int64_t>(4, job.train.lanes), .workers = workers}, false);
    layout.transport = part.name;
    layouts.push_back(std::move(layout));
  }
}

/// Rows of a sweep. What takes turns does so by counters of its own, so that no two go in step for
/// long.
class Sweep {
 public:
  explicit Sweep(const Job& job)
      : base_(job.layout),
        lanes_(job.train.lanes),
        columns_(job.train.tensor_slices),
        device_(job.numerics.device == DeviceKind::kCuda),
        cut_(model_part(job).second_stage) {
    base_.hosts = 1, base_.partition = PartitionKind::kLanes, base_.fold = FoldKind::kLocal,
    base_.zero = 0, base_.isa = name_of(Isa::kAuto);
  }

  std::vector<LayoutConfig> run() {
    alone();
    for (int64_t tensor : kSizes)
      for (int64_t pipeline : kSizes)
        for (int64_t data : kSizes) {
          const int64_t ranks = data * tensor * pipeline;
          if (ranks == 1 || ranks > (device_ ? 4 : 8) || data > lanes_ || tensor > columns_)
            continue;
          mesh(data, tensor, pipeline);
        }
    return std::move(rows_);
  }

 private:
  static constexpr int64_t kSizes[] = {1, 2, 3, 4, 8};
  const std::vector<std::string> all_schedules_ = names_of<PipelinePart>();
  static constexpr Recompute kRecomputes[] = {Recompute::kNone, Recompute::kFull, Recompute::kNone,
                                              Recompute::kSelective};
  static constexpr Offload kOffloads[] = {Offload::kNone, Offload::kNone, Offload::kNone,
                                          Offload::kNone, Offload::kOptimizer};

  template <class T, size_t N>
  static T turn(const T (&values)[N], size_t at) {
    return values[at % N];
  }

  LayoutConfig meshed(int64_t data, int64_t tensor, int64_t pipeline) {
    LayoutConfig row = base_;
    row.ranks = data * tensor * pipeline;
    row.tensor = tensor, row.pipeline = pipeline;
    return row;
  }

  void alone() {
    for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
      LayoutConfig row = meshed(1, 1, 1);
      row.recompute = recompute;
      add(row);
    }
    for (const Offload offload : {Offload::kOptimizer, Offload::kAll}) {
      LayoutConfig row = meshed(1, 1, 1);
      row.offload = offload;
      add(row);
    }
    // By hand, as uneven as can be.
    LayoutConfig split = meshed(1, 1, 2);
    split.cut = cut_;
    if (!cut_.empty()) add(split);
  }

  /// All schedules if the mesh has only stages. Otherwise one of them by turns, preceded the first
  /// time by the one that any number of layers allows.
  std::vector<std::string> schedules_of(const LayoutConfig& row, bool first) {
    if (row.pipeline == 1) return {row.schedule};
    if (row.ranks == row.pipeline) return all_schedules_;
    std::vector<std::string> schedules{all_schedules_[schedules_++ % all_schedules_.size()]};
    if (first && schedules[0] != all_schedules_[0])
      schedules.insert(schedules.begin(), all_schedules_[0]);
    return schedules;
  }

  void mesh(int64_t data, int64_t tensor, int64_t pipeline) {
    for (int64_t zero = 0; zero <= (data > 1 ? 3 : 0); ++zero) {
      LayoutConfig row = meshed(data, tensor, pipeline);
      row.zero = zero;
      if (zero == 0 && tensor * pipeline == 1) {
        row.fold = FoldKind::kOwner;
        add(row);
        continue;
      }

      // What does not decide the mesh takes turns over the rows.
      for (const std::string& schedule : schedules_of(row, zero == 0)) {
        row.schedule = schedule;
        row.in_flight =
            pipeline > 1 && splits_backward(schedule) && fitted_++ % 3 == 1 ? pipeline + 1 : 0;
        row.recompute = turn(kRecomputes, recomputes_++);
        row.offload = turn(kOffloads, offloads_++);
        if (zero == 3) row.depth = 1 + static_cast<int64_t>(depths_++ % 2);
        add(row);
      }

      // Hosts of two data ranks make sums in two levels.
      row.offload = Offload::kNone;
      if (data % 2 == 0 && data > 2) {
        row.hosts = data / 2 * pipeline;  // of two data ranks: sums have two levels
        row.shards = zero > 0 ? 2 : 0;    // slices inside of a host, replicas between them
        add(row);
        row.shards = 0;  // slices over hosts
        if (zero == 3) add(row);
        row.hosts = 1;
      }
      if (zero > 1 && tensor * pipeline == 1) {
        row.fold = FoldKind::kOwner;
        add(row);
      }
    }
  }

  void add(LayoutConfig row) {
    const size_t at = rows_.size();
    row.overlap = at % 3 != 1;
    // Threads start fastest.
    row.workers = device_ || at % 4 >= 2 ? Workers::kProcess : Workers::kThread;
    const bool messages = !device_ && (at % 8 == 1 || at % 8 == 6);
    row.transport = transport_of(messages ? kByMessages : kPlainly, device_, row.workers);
    rows_.push_back(std::move(row));
  }

  LayoutConfig base_;
  const int64_t lanes_, columns_;
  const bool device_;
  const std::string cut_;  // where a second stage may begin; empty: blocks have names of their own
  std::vector<LayoutConfig> rows_;
  size_t schedules_ = 0, recomputes_ = 0, offloads_ = 0, depths_ = 0, fitted_ = 0;
};

}  // namespace

std::vector<LayoutConfig> verify_layouts(const Job& job) {
  std::vector<LayoutConfig> layouts;
  const bool gpu = job.numerics.device == DeviceKind::kCuda;
  for (const Row& row : gpu ? std::span<const Row>(kDeviceRows) : kHostRows)
    if (row.ranks <= job.train.lanes) layouts.push_back(layout_of(job.layout, row, gpu));
  if (!gpu) add_other_transports(job, layouts);
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
    std::vector<std::string> faults = faults_of(asked, machine, model_rules());
    if (faults.empty()) faults = mesh_faults(shape, mesh_options(asked, shape, slots));
    if (layout.workers == Workers::kThread && !on_threads.empty()) faults.push_back(on_threads);
    all.push_back(faults.empty() ? "" : faults.front());
  }
  return all;
}

}  // namespace tutti
