// Orders made to measure, by list scheduling: lists of what is to be done are worked off by the
// clock. A stage that is free takes the cell that can begin first; if there are several, forwards
// or input parts (which other stages wait for) come before weight parts (which nobody waits for). A
// stage's weight parts of one micro-batch go from its last chunk to its first: what a chunk puts
// out is read by the weight part of the next one, and a parameter that two share is summed when the
// earlier one is done. Whether forwards or input parts come first, and how early messages ought to
// be sent, is tried out.
//
// No order can deadlock: the oldest micro-batch that is not through finds every chunk's place free.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "plan/make/pipeline_schedule.h"

namespace tutti {

namespace {

constexpr CellKind kForward = CellKind::kForward, kInput = CellKind::kInput,
                   kWeight = CellKind::kWeight;
using Preference = std::array<CellKind, 3>;
using Cells = std::vector<std::vector<Cell>>;

/// Works a list off once for every way that is tried.
class List {
 public:
  List(const PipelinePart& schedule, int stages, int micro_batches,
       const std::vector<CellCosts>& costs, int in_flight)
      : schedule_(schedule),
        stages_(stages),
        micro_batches_(micro_batches),
        costs_(costs),
        in_flight_(in_flight),
        all_(static_cast<int>(costs.size())) {}

  /// The order of all stages, with kinds of cells taken by `preference`, as if a
  /// message took `hop`.
  Cells work_off(const Preference& preference, double hop) {
    preference_ = preference, hop_ = hop;
    cells_.assign(stages_, {});
    free_at_.assign(stages_, 0);
    ends_.assign(size_t{4} * all_ * micro_batches_, -1);
    next_.assign(size_t{4} * all_, 0);
    best_.assign(stages_, {});
    for (int stage = 0; stage < stages_; ++stage) best_[stage] = best_of(stage);

    // One cell at a time, the earliest of all stages: every cell's needs are then known before it.
    for (size_t left = size_t{3} * all_ * micro_batches_; left > 0; --left) run_first();
    return cells_;
  }

 private:
  /// A cell that a stage could do next. The smallest is taken: the earliest first, then by
  /// preference.
  struct Option {
    double begin = std::numeric_limits<double>::infinity();
    int order = 0, chunk_order = 0;
    Cell cell;
    bool operator<(const Option& other) const {
      return std::tie(begin, order, chunk_order) <
             std::tie(other.begin, other.order, other.chunk_order);
    }
  };

  int stage(int chunk) const { return stage_of(schedule_, stages_, chunk); }
  int& next(CellKind kind, int chunk) { return next_[static_cast<size_t>(kind) * all_ + chunk]; }
  double& end(const Cell& cell) {
    return ends_[(static_cast<size_t>(cell.kind) * all_ + cell.chunk) * micro_batches_ +
                 cell.micro];
  }

  /// When a cell can begin; nothing if it waits for one that has no place yet.
  std::optional<double> begin_of(const Cell& cell) {
    std::vector<Cell> needs = needs_of(cell, all_);

    // The chunk's place is free when the micro-batch that had it before is done with
    // its weight part.
    if (cell.kind == kForward && cell.micro >= in_flight_)
      needs.push_back({kWeight, cell.chunk, cell.micro - in_flight_});

    // A stage's later chunks have their weight parts first.
    const int here = stage(cell.chunk);
    if (cell.kind == kWeight)
      for (int later = cell.chunk + 1; later < all_; ++later)
        if (stage(later) == here) needs.push_back({kWeight, later, cell.micro});

    // What comes from another stage is there `hop_` after it was made.
    double begin = free_at_[here];
    for (const Cell& need : needs) {
      const double ended = end(need);
      if (ended < 0) return {};
      begin = std::max(begin, stage(need.chunk) == here ? ended : ended + hop_);
    }
    return begin;
  }

  /// The next cell of a stage, of all its chunks and kinds.
  Option best_of(int at) {
    Option best;
    for (int chunk = 0; chunk < all_; ++chunk) {
      if (stage(chunk) != at) continue;
      for (int order = 0; order < 3; ++order) {
        const CellKind kind = preference_[order];
        const Cell cell{kind, chunk, next(kind, chunk)};
        if (cell.micro == micro_batches_) continue;
        const std::optional<double> begin = begin_of(cell);
        if (!begin) continue;
        // What has gone furthest comes first.
        const Option option{*begin, order, kind == kForward ? -chunk : chunk, cell};
        if (option < best) best = option;
      }
    }
    return best;
  }

  /// Puts the earliest cell of all stages into the order, and looks again at the stages that this
  /// changes: its own, and that of the chunk that reads what it made.
  void run_first() {
    const auto first = std::min_element(best_.begin(), best_.end());
    const Cell cell = first->cell;
    TUTTI_CHECK(first->begin < std::numeric_limits<double>::infinity(),
                "schedule {}: no stage can go on", schedule_.name);
    const int here = stage(cell.chunk);

    free_at_[here] = end(cell) = first->begin + cell_cost(cell.kind, costs_[cell.chunk]);
    ++next(cell.kind, cell.chunk);
    cells_[here].push_back(cell);
    best_[here] = best_of(here);

    const int reader = cell.kind == kForward ? cell.chunk + 1 : cell.chunk - 1;
    if (cell.kind != kWeight && reader >= 0 && reader < all_)
      best_[stage(reader)] = best_of(stage(reader));
  }

  const PipelinePart& schedule_;
  const int stages_, micro_batches_;
  const std::vector<CellCosts>& costs_;
  const int in_flight_, all_;
  Preference preference_{};
  double hop_ = 0;
  Cells cells_;
  std::vector<double> free_at_;  // by stage
  std::vector<double> ends_;     // by kind, chunk and micro-batch; -1: not yet
  std::vector<int> next_;        // micro-batch by kind and chunk
  std::vector<Option> best_;     // by stage
};

}  // namespace

std::vector<std::vector<Cell>> fit_schedule(const std::string& schedule, int stages,
                                            int micro_batches, const std::vector<CellCosts>& costs,
                                            int in_flight) {
  TUTTI_CHECK(splits_backward(schedule) && in_flight > 0, "schedule {:?}, {} in flight", schedule,
              in_flight);

  // Hops that are tried are fractions of a mean forward.
  double mean = 0;
  for (const CellCosts& cost : costs) mean += cost.forward / static_cast<double>(costs.size());
  List list(part_named<PipelinePart>(schedule), stages, micro_batches, costs, in_flight);
  Cells best;
  double least = std::numeric_limits<double>::infinity();
  for (const Preference& preference :
       {Preference{kForward, kInput, kWeight}, Preference{kInput, kForward, kWeight}}) {
    for (double ahead : {0.0, 0.1, 0.25, 0.5}) {
      Cells cells = list.work_off(preference, ahead * mean);

      // Judged with late messages: an order that is still fast then has room for stages that are
      // slower than they should be.
      double last = 0;
      for (const auto& own : time_cells(schedule, stages, 1, cells, costs, mean / 10))
        last = std::max(last, own.back().end);
      if (last < least) least = last, best = std::move(cells);
    }
  }
  return best;
}

}  // namespace tutti
