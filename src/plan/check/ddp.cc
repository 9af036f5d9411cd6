// The checker goes from form to meaning, and stops after the first stage with faults, since the next ones build on it:
// structure, meetings and circles (plan/check/ordering.h), conflicting accesses, then work (plan/search/census.h) and
// values (plan/check/ddp_values.h).
#include "plan/check/ddp.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "plan/check/ddp_values.h"
#include "plan/check/ordering.h"
#include "plan/search/census.h"

namespace tutti {

namespace {

class Structure {
 public:
  Structure(const Plan& plan, const ModelShape& model, std::vector<std::string>& faults)
      : plan_(plan), model_(model), faults_(faults) {}

  void check() {
    if (plan_.programs.empty() || static_cast<int>(plan_.programs.size()) != plan_.ranks) {
      faults_.push_back(fmt::format("{} programs for {} ranks", plan_.programs.size(), plan_.ranks));
      return;
    }
    check_buckets();
    int64_t next = 0;
    for (size_t r = 0; r < plan_.programs.size(); ++r) {
      const Program& program = plan_.programs[r];
      if (program.rank != static_cast<int>(r)) fault(r, "its program is that of rank {}", program.rank);
      if (program.lanes.begin != next || program.lanes.empty()) {
        fault(r, "its lanes [{}, {}) do not follow lane {}", program.lanes.begin, program.lanes.end, next);
      }
      next = program.lanes.end;
      if (program.queues.empty()) fault(r, "it has no queue");
      check_buffers(program);
      check_instructions(program);
    }
    if (next != plan_.lanes) faults_.push_back(fmt::format("lanes [{}, {}) belong to nobody", next, plan_.lanes));
  }

 private:
  template <typename... Args>
  void fault(size_t rank, fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(fmt::format("rank {}: {}", rank, fmt::format(format, std::forward<Args>(args)...)));
  }

  template <typename... Args>
  void fault_at(Place place, fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(name_of(plan_, place) + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  void check_buckets() {
    std::vector<int> seen(model_.blocks.size(), 0);
    for (size_t b = 0; b < plan_.buckets.size(); ++b) {
      const Bucket& bucket = plan_.buckets[b];
      int64_t end = 0;
      for (size_t k = 0; k < bucket.units.size(); ++k) {
        const int unit = bucket.units[k];
        if (unit < 0 || unit >= static_cast<int>(seen.size()) || k >= bucket.unit_offset.size()) {
          faults_.push_back(fmt::format("bucket {}: unit {} is not there", b, unit));
          return;
        }
        ++seen[unit];
        if (bucket.unit_offset[k] < end || bucket.unit_offset[k] % kAlign != 0) {
          faults_.push_back(fmt::format("bucket {}: unit {} overlaps the one before or is not aligned", b, unit));
        }
        end = bucket.unit_offset[k] + model_.blocks[unit].gradient_size;
      }
      if (end > bucket.partial_size) faults_.push_back(fmt::format("bucket {}: its units end behind it", b));
    }
    for (size_t u = 0; u < seen.size(); ++u) {
      if (seen[u] != (model_.blocks[u].gradient_size > 0 ? 1 : 0)) {
        faults_.push_back(fmt::format("unit {} is in {} buckets", u, seen[u]));
      }
    }
  }

  void check_buffers(const Program& program) {
    const size_t partials = subtrees(program.lanes, plan_.lanes).size();
    std::map<std::pair<int, int>, int> window;
    for (const Buffer& b : program.buffers) {
      if (b.unit >= static_cast<int>(model_.blocks.size()))
        fault(program.rank, "buffer {} is of unit {}", b.name, b.unit);
      if (b.kind != BufferKind::kGradient || b.unit < 0 || b.unit >= static_cast<int>(model_.blocks.size())) continue;
      if (b.partial >= 0) ++window[{b.unit, b.partial}];
      const int64_t bytes = model_.blocks[b.unit].gradient_size * static_cast<int64_t>(sizeof(float));
      if (b.bytes < bytes) fault(program.rank, "buffer {} has {} bytes, its unit {}", b.name, b.bytes, bytes);
    }
    for (const Bucket& bucket : plan_.buckets) {
      for (int unit : bucket.units) {
        for (size_t p = 0; p < partials; ++p) {
          const int count = window[{unit, static_cast<int>(p)}];
          if (count != 1) fault(program.rank, "partial {} of unit {} is there {} times", p, unit, count);
        }
      }
    }
  }

  void check_instructions(const Program& program) {
    std::vector<int> signalled(program.events, 0);
    std::set<uint32_t> ids;
    std::map<int, int> holder;  // buffer -> the queue that holds it
    for (size_t q = 0; q < program.queues.size(); ++q) {
      for (size_t k = 0; k < program.queues[q].instructions.size(); ++k) {
        const Instruction& i = program.queues[q].instructions[k];
        const Place place{program.rank, static_cast<int>(q), static_cast<int>(k)};
        const auto inside = [](int value, size_t size) { return value >= 0 && value < static_cast<int>(size); };
        if (!ids.insert(i.id).second) fault_at(place, "its id {} is not its own", i.id);
        if (i.signal >= 0) {
          const bool there = inside(i.signal, signalled.size());
          if (there) ++signalled[i.signal];
          if (!there) fault_at(place, "signals event {}, which is not there", i.signal);
        }
        std::vector<int> touched = i.reads;
        touched.insert(touched.end(), i.writes.begin(), i.writes.end());
        for (const Add& a : i.adds) touched.insert(touched.end(), {a.into, a.from});
        for (int b : i.holds) {
          if (holder.emplace(b, q).first->second != static_cast<int>(q)) {
            fault_at(place, "holds buffer {} of another queue", b);
          }
          touched.push_back(b);
        }
        for (int b : touched) {
          if (!inside(b, program.buffers.size())) fault_at(place, "buffer {} is not there", b);
        }
        check_coordinates(program, place, i);
      }
    }
    for (size_t q = 0; q < program.queues.size(); ++q) {
      for (size_t k = 0; k < program.queues[q].instructions.size(); ++k) {
        for (int event : program.queues[q].instructions[k].waits) {
          const bool there = event >= 0 && event < program.events;
          if (there && signalled[event] == 1) continue;
          fault_at({program.rank, static_cast<int>(q), static_cast<int>(k)},
                   "waits for event {}, which is signalled {} times", event, there ? signalled[event] : 0);
        }
      }
    }
    for (int event = 0; event < program.events; ++event) {
      if (signalled[event] > 1) fault(program.rank, "event {} is signalled {} times", event, signalled[event]);
    }
  }

  void check_coordinates(const Program& program, Place place, const Instruction& i) {
    const auto want = [&](bool holds, const char* what) {
      if (!holds) fault_at(place, "{}", what);
    };
    const bool compute =
        i.op == Op::kLoad || i.op == Op::kForward || i.op == Op::kBackward || i.op == Op::kFold || i.op == Op::kUpdate;
    if (compute) want(place.queue == 0, "stands on another queue than compute");
    const bool has_block = i.op == Op::kForward || i.op == Op::kBackward || i.op == Op::kFold || i.op == Op::kUpdate;
    if (has_block) {
      const bool block = i.block >= 0 && i.block < static_cast<int>(model_.blocks.size());
      want(block, "names no block");
      if (block && (i.op == Op::kForward || i.op == Op::kBackward)) {
        want(i.segment >= 0 && i.segment < static_cast<int>(model_.blocks[i.block].segments.size()),
             "names no segment");
      }
    }
    if (i.op == Op::kLoad || i.op == Op::kForward || i.op == Op::kBackward) {
      want(program.lanes.contains(i.lane), "its lane is another rank's");
    }
    if (!compute && i.op != Op::kVote) {
      want(i.bucket >= 0 && i.bucket < static_cast<int>(plan_.buckets.size()), "names no bucket");
    }
    want(i.op == Op::kFold || i.adds.empty(), "adds without being a fold");
    want(i.op != Op::kFold || (i.reads.empty() && i.writes.empty()), "a fold's buffers stand in its additions");
  }

  const Plan& plan_;
  const ModelShape& model_;
  std::vector<std::string>& faults_;
};

/// Conflicting accesses to a buffer must be ordered in every interleaving. Peers read windows: Reduce all partials of
/// its bucket on all ranks, Update the reduced ones (each rank's first) until it is done.
class Races {
 public:
  Races(const Plan& plan, const Ordering& ordering, std::vector<std::string>& faults)
      : plan_(plan), ordering_(ordering), faults_(faults) {
    for (const Program& program : plan.programs) {
      history_.emplace_back(program.buffers.size());
      auto& window = window_.emplace_back(plan.buckets.size());
      std::map<int, int> bucket_of;
      for (size_t b = 0; b < plan.buckets.size(); ++b) {
        for (int unit : plan.buckets[b].units) bucket_of[unit] = static_cast<int>(b);
      }
      for (size_t b = 0; b < program.buffers.size(); ++b) {
        const Buffer& buffer = program.buffers[b];
        if (buffer.kind == BufferKind::kGradient && buffer.partial >= 0) {
          window[bucket_of[buffer.unit]].push_back(static_cast<int>(b));
        }
      }
    }
  }

  void check() {
    for (const auto& places : ordering_.sequence()) {
      together_ = &places;
      for (const Place& place : places) visit(place);
    }
  }

 private:
  struct History {
    std::vector<Place> writes, reads;  // the last write (those of one meeting), and the reads since
  };

  void visit(Place place) {
    const Instruction& i = at(plan_, place);
    for (int b : i.reads) read(place, place.rank, b);
    for (const Add& a : i.adds) {
      read(place, place.rank, a.from);
      read(place, place.rank, a.into);
    }
    if (i.op == Op::kReduce || i.op == Op::kUpdate) {
      for (int r = 0; r < static_cast<int>(plan_.programs.size()); ++r) {
        if (r == place.rank || i.bucket < 0 || i.bucket >= static_cast<int>(plan_.buckets.size())) continue;
        for (int b : window_[r][i.bucket]) {
          const Buffer& buffer = plan_.programs[r].buffers[b];
          if (i.op == Op::kReduce || (buffer.partial == 0 && buffer.unit == i.block)) read(place, r, b);
        }
      }
    }
    for (int b : i.writes) write(place, place.rank, b);
    for (const Add& a : i.adds) write(place, place.rank, a.into);
  }

  void read(Place place, int rank, int buffer) {
    History& h = history_[rank][buffer];
    for (const Place& w : h.writes) require(w, place, rank, buffer);
    if (std::find(h.reads.begin(), h.reads.end(), place) == h.reads.end()) h.reads.push_back(place);
  }
  void write(Place place, int rank, int buffer) {
    History& h = history_[rank][buffer];
    for (const Place& w : h.writes) require(w, place, rank, buffer);
    for (const Place& r : h.reads) require(r, place, rank, buffer);
    // Members of one meeting touch disjoint slices; their reads stay on record for what comes after.
    std::erase_if(h.reads, [&](const Place& r) {
      return std::find(together_->begin(), together_->end(), r) == together_->end();
    });
    h.writes = {place};
  }
  void require(Place first, Place second, int rank, int buffer) {
    if (first == second || ordering_.before(first, second)) return;
    if (std::find(together_->begin(), together_->end(), first) != together_->end()) return;
    faults_.push_back(fmt::format("{} and {} are not ordered, both touch '{}' of rank {}", name_of(plan_, first),
                                  name_of(plan_, second), plan_.programs[rank].buffers[buffer].name, rank));
  }

  const Plan& plan_;
  const Ordering& ordering_;
  std::vector<std::string>& faults_;
  std::vector<std::vector<History>> history_;          // [rank][buffer]
  std::vector<std::vector<std::vector<int>>> window_;  // [rank][bucket]: its buffers in the window
  const std::vector<Place>* together_ = nullptr;
};

}  // namespace

std::vector<std::string> check_plan(const Plan& plan, const ModelShape& model, int micro_batches) {
  std::vector<std::string> faults;
  Structure(plan, model, faults).check();
  if (!faults.empty()) return faults;
  const Ordering ordering(plan, faults);
  if (!faults.empty()) return faults;
  Races(plan, ordering, faults).check();
  if (!faults.empty()) return faults;
  faults = check_census(plan, model, micro_batches);
  const auto meaning = check_values(plan, model, micro_batches, ordering);
  faults.insert(faults.end(), meaning.begin(), meaning.end());
  return faults;
}

int64_t MemoryForecast::total() const { return std::accumulate(std::begin(bytes), std::end(bytes), int64_t{0}); }

MemoryForecast forecast_memory(const Program& program) {
  MemoryForecast forecast;
  for (const Buffer& buffer : program.buffers)
    if (!buffer.offloaded) forecast.bytes[static_cast<int>(buffer.kind)] += buffer.bytes;
  return forecast;
}

}  // namespace tutti
