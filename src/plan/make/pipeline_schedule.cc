// The orders are the published ones, written down directly: GPipe (Huang et al.), 1F1B
// (PipeDream-Flush), Megatron's interleaved 1F1B (Narayanan et al.), ZB-H1 and ZB-V (Qi et al.). A
// stage's order only says which chunk does what next; the micro-batch is the next one of that
// chunk, so that micro-batches stay in order by construction. Schedules that are made for certain
// numbers of micro-batches are written for the next such number, and what does not exist is left
// out: what remains of an order without deadlock has none.
#include "plan/make/pipeline_schedule.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "config/job_parts.h"

namespace tutti {

namespace {

constexpr CellKind kForward = CellKind::kForward, kBackward = CellKind::kBackward,
                   kInput = CellKind::kInput, kWeight = CellKind::kWeight;

/// Writes one stage's cells.
class Writer {
 public:
  Writer(std::vector<int> chunks, int micro_batches)
      : chunks_(std::move(chunks)), counts_(chunks_.size()), micro_batches_(micro_batches) {}

  /// The next micro-batch of the stage's chunk number `local`; left out where there are no more.
  void put(CellKind kind, int local = 0) {
    const int micro = counts_[local][static_cast<size_t>(kind)]++;
    if (micro < micro_batches_) cells.push_back({kind, chunks_[local], micro});
  }
  int count(CellKind kind, int local) const { return counts_[local][static_cast<size_t>(kind)]; }

  std::vector<Cell> cells;

 private:
  std::vector<int> chunks_;
  std::vector<std::array<int, 4>> counts_;  // by chunk and kind
  int micro_batches_;
};

void gpipe(Writer& writer, int micro_batches) {
  for (int i = 0; i < micro_batches; ++i) writer.put(kForward);
  for (int i = 0; i < micro_batches; ++i) writer.put(kBackward);
}

/// The warm-up fills the stages after this one; then every forward is followed by a backward, and
/// what was warmed up is paid back at the end.
void one_forward_one_backward(Writer& writer, int stages, int stage, int micro_batches) {
  for (int i = 0; i < stages - 1 - stage; ++i) writer.put(kForward);
  for (int i = 0; i < micro_batches; ++i) {
    writer.put(kForward);
    writer.put(kBackward);
  }
}

// Groups of P micro-batches go through one chunk after the other. Forward is ahead of backward by
// the warm-up: twice the way to the last stage, and all chunks but one of a group.
void interleaved(Writer& writer, int stages, int stage, int chunks, int micro_batches) {
  const int all = (micro_batches + stages - 1) / stages * stages * chunks;
  const int ahead = std::min(all, 2 * (stages - 1 - stage) + (chunks - 1) * stages);
  const auto chunk = [&](int i) { return i / stages % chunks; };
  for (int i = 0; i < ahead; ++i) writer.put(kForward, chunk(i));
  for (int i = 0; i < all; ++i) {
    if (ahead + i < all) writer.put(kForward, chunk(ahead + i));
    writer.put(kBackward, chunks - 1 - chunk(i));
  }
}

// 1F1B whose weight parts are late by as many micro-batches as the stage has fewer in flight than
// the first: they fill the end, when the input parts have the shortest way.
void zero_bubble(Writer& writer, int stages, int stage, int micro_batches) {
  for (int i = 0; i < stages - 1 - stage; ++i) writer.put(kForward);
  for (int i = 0; i < micro_batches; ++i) {
    writer.put(kForward);
    writer.put(kInput);
    if (i >= stage) writer.put(kWeight);
  }
  for (int i = 0; i < std::min(stage, micro_batches); ++i) writer.put(kWeight);
}

// Down the V (chunk 0) and up again (chunk 1). Stage s has filled its 2P places when the first
// micro-batch is back; from then on whole rounds of six cells keep it busy until the forwards are
// used up, and the weight parts that were put off fill the end.
void v_shape(Writer& writer, int stages, int stage, int micro_batches) {
  const int all = std::max(micro_batches, 2 * stages - 1);
  const auto put = [&](std::initializer_list<CellKind> kinds, int local) {
    for (CellKind kind : kinds) writer.put(kind, local);
  };

  // Warm-up: down the V, until the first micro-batch has come back up to this stage.
  for (int i = 0; i < 2 * (stages - stage) - 1; ++i) put({kForward}, 0);

  // Up and down in turn, until all 2P places are taken.
  for (int i = 0; i < stage; ++i) {
    put({kForward}, 1);
    put({kForward}, 0);
  }

  // The first micro-batches go up again and back, each with its weight part.
  for (int i = 0; i < stages - stage; ++i) put({kForward, kInput, kWeight}, 1);

  // Steady: nothing waits.
  while (writer.count(kForward, 1) < all) {
    put({kForward, kInput, kWeight}, 0);
    put({kForward, kInput, kWeight}, 1);
  }

  // The end: input parts first, since other stages wait for them; weight parts fill in.
  for (int i = 0; i < stage; ++i) {
    put({kInput}, 0);
    put({kInput}, 1);
  }
  for (int i = 0; i < stages - stage; ++i) put({kInput, kWeight}, 0);
  while (writer.count(kWeight, 1) < all) put({kWeight}, 1);
  while (writer.count(kWeight, 0) < all) put({kWeight}, 0);
}

}  // namespace

/// A forward needs the chunk before, a backward its own forward and the chunk after; a weight part
/// needs only its input part.
std::vector<Cell> needs_of(const Cell& cell, int all_chunks) {
  if (cell.kind == kForward) {
    if (cell.chunk == 0) return {};
    return {{kForward, cell.chunk - 1, cell.micro}};
  }
  if (cell.kind == kWeight) return {{kInput, cell.chunk, cell.micro}};
  if (cell.chunk == all_chunks - 1) return {{kForward, cell.chunk, cell.micro}};
  return {{kForward, cell.chunk, cell.micro}, {cell.kind, cell.chunk + 1, cell.micro}};
}

double cell_cost(CellKind kind, const CellCosts& costs) {
  switch (kind) {
    case kForward:
      return costs.forward;
    case kInput:
      return costs.input;
    case kWeight:
      return costs.weight;
    case kBackward:
      break;
  }
  return costs.input + costs.weight;
}

std::string plain_schedule() { return std::string(parts<PipelinePart>().front().name); }

bool splits_backward(const std::string& schedule) {
  return part_named<PipelinePart>(schedule).splits;
}

int chunks_of(const std::string& schedule, int chunks) {
  const int fixed = part_named<PipelinePart>(schedule).chunks;
  return fixed > 0 ? fixed : chunks;
}

int stage_of(const std::string& schedule, int stages, int chunk) {
  return stage_of(part_named<PipelinePart>(schedule), stages, chunk);
}

int stage_of(const PipelinePart& schedule, int stages, int chunk) {
  if (!schedule.returns) return chunk % stages;
  return chunk < stages ? chunk : 2 * stages - 1 - chunk;
}

namespace {

/// A schedule of the table in config/job_parts.cc.
struct Schedule {
  std::string_view name;
  /// Writes the cells of a stage that has `many` chunks.
  void (*write)(Writer& writer, int stages, int stage, int many, int micro_batches);
  /// How long a stage idles, in thirds of a micro-batch of a chunk; without it, as long as in 1f1b.
  double (*idle)(int stages, int micro_batches) = nullptr;
};

/// How many micro-batches are missing for every stage to have one.
int missing(int stages, int micro_batches) { return std::max(0, stages - micro_batches); }

void in_turns(Writer& writer, int stages, int stage, int many, int micro_batches) {
  if (many > 1) return interleaved(writer, stages, stage, many, micro_batches);
  one_forward_one_backward(writer, stages, stage, micro_batches);
}

constexpr Schedule kSchedules[] = {
    {"1f1b", in_turns},
    {"gpipe",
     [](Writer& writer, int, int, int, int micro_batches) { gpipe(writer, micro_batches); }},
    {"interleaved", in_turns},
    {"zero-bubble",
     [](Writer& writer, int stages, int stage, int, int micro_batches) {
       zero_bubble(writer, stages, stage, micro_batches);
     },
     [](int stages, int micro_batches) {
       return static_cast<double>(stages - 1 + missing(stages, micro_batches));
     }},
    {"zbv",
     [](Writer& writer, int stages, int stage, int, int micro_batches) {
       v_shape(writer, stages, stage, micro_batches);
     },
     [](int stages, int micro_batches) {
       return static_cast<double>(std::max(0, 2 * stages - 1 - micro_batches) +
                                  missing(stages, micro_batches));
     }},
};

const Schedule& schedule_named(const std::string& name) {
  const auto* found = std::find_if(std::begin(kSchedules), std::end(kSchedules),
                                   [&](const Schedule& one) { return one.name == name; });
  TUTTI_CHECK(found != std::end(kSchedules), "no schedule {:?}", name);
  return *found;
}

}  // namespace

std::vector<std::string> pipeline_schedule_names() { return row_names(kSchedules); }

std::vector<std::vector<Cell>> make_schedule(const std::string& schedule, int stages, int chunks,
                                             int micro_batches) {
  const Schedule& order = schedule_named(schedule);
  const int many = chunks_of(schedule, chunks);
  std::vector<std::vector<Cell>> cells;
  for (int stage = 0; stage < stages; ++stage) {
    std::vector<int> own;
    for (int chunk = 0; chunk < stages * many; ++chunk) {
      if (stage_of(schedule, stages, chunk) == stage) own.push_back(chunk);
    }

    // The stage's chunks, in ascending order, are its local numbers 0, 1, ...
    Writer writer(std::move(own), micro_batches);
    order.write(writer, stages, stage, many, micro_batches);
    cells.push_back(std::move(writer.cells));
  }
  return cells;
}

std::vector<std::vector<CellTime>> time_cells(const std::string& schedule, int stages, int chunks,
                                              const std::vector<std::vector<Cell>>& cells,
                                              const std::vector<CellCosts>& costs, double hop) {
  const PipelinePart& part = part_named<PipelinePart>(schedule);
  const int all = stages * chunks_of(schedule, chunks);
  int micro_batches = 0;
  for (const auto& own : cells) {
    for (const Cell& cell : own) micro_batches = std::max(micro_batches, cell.micro + 1);
  }

  // When each cell ends, by kind, chunk and micro-batch; -1: not yet known.
  const auto number = [&](const Cell& cell) {
    return (static_cast<size_t>(cell.kind) * all + cell.chunk) * micro_batches + cell.micro;
  };
  std::vector<double> ends(size_t{4} * all * micro_batches, -1);
  std::vector<std::vector<CellTime>> times(cells.size());

  // Every stage goes on as far as it can, until none can any more: stages wait for each other in
  // both directions, so one pass over them would not do.
  for (bool moved = true; moved;) {
    moved = false;

    // A stage that has stopped early waits in a circle: the order is at fault.
    for (int stage = 0; stage < stages; ++stage) {
      while (times[stage].size() < cells[stage].size()) {
        const Cell& cell = cells[stage][times[stage].size()];
        double begin = times[stage].empty() ? 0 : times[stage].back().end;
        bool ready = true;
        for (const Cell& need : needs_of(cell, all)) {
          const double end = ends[number(need)];
          ready = ready && end >= 0;
          begin = std::max(begin, stage_of(part, stages, need.chunk) == stage ? end : end + hop);
        }
        if (!ready) break;
        times[stage].push_back(
            {begin, begin + cell_cost(cell.kind, costs[costs.size() == 1 ? 0 : cell.chunk])});
        ends[number(cell)] = times[stage].back().end;
        moved = true;
      }
    }
  }
  for (int stage = 0; stage < stages; ++stage) {
    TUTTI_CHECK(times[stage].size() == cells[stage].size(),
                "schedule {}: stage {} stops before its cell {}", schedule, stage,
                times[stage].size());
  }
  return times;
}

double idle_share(const std::string& schedule, const std::vector<std::vector<CellTime>>& times) {
  double first = times.at(0).at(0).begin, last = 0, spans = 0, busy = 0;
  for (const auto& own : times) {
    first = std::min(first, own.front().begin);
    last = std::max(last, own.back().end);
    spans += own.back().end - own.front().begin;
    for (const CellTime& cell : own) busy += cell.end - cell.begin;
  }

  // Where chunks come back up the stages, stages begin and end at different times, so each has a
  // span of its own.
  return 1 - busy / (part_named<PipelinePart>(schedule).returns
                         ? spans
                         : (last - first) * static_cast<double>(times.size()));
}

double bubble_formula(const std::string& schedule, int stages, int chunks, int micro_batches) {
  // In units of a forward: a chunk's micro-batch costs 3, and stages idle for (P-1) of them while
  // the pipeline fills and drains. Weight parts fill most of it; with too few micro-batches there
  // are fewer of them to fill in.
  const double work = 3.0 * micro_batches * chunks_of(schedule, chunks);
  const Schedule& order = schedule_named(schedule);
  const double idle = order.idle ? order.idle(stages, micro_batches) : 3.0 * (stages - 1);
  return idle / (work + idle);
}

}  // namespace tutti
