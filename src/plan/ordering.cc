#include "plan/ordering.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

namespace tutti {

const Instruction& at(const Plan& plan, Place place) {
  return plan.programs[place.rank].queues[place.queue].instructions[place.index];
}

std::string name_of(const Plan& plan, Place place) {
  return fmt::format("rank {} queue {} #{} {}", place.rank, plan.programs[place.rank].queues[place.queue].name,
                     place.index, to_string(at(plan, place)));
}

namespace {

/// Acquire stands in the same order everywhere but waits for the peers' step before, not for their Acquire.
bool joins(Op op) { return meets(op) && op != Op::kAcquire; }

std::vector<Place> meetings_of(const Plan& plan, int rank, int queue) {
  std::vector<Place> list;
  const auto& instructions = plan.programs[rank].queues[queue].instructions;
  for (size_t i = 0; i < instructions.size(); ++i) {
    if (meets(instructions[i].op)) list.push_back({rank, queue, static_cast<int>(i)});
  }
  return list;
}

/// The instruction that signals each event of a rank.
std::vector<Place> signallers(const Program& program, int rank) {
  std::vector<Place> list(program.events);
  for (size_t q = 0; q < program.queues.size(); ++q) {
    const auto& instructions = program.queues[q].instructions;
    for (size_t i = 0; i < instructions.size(); ++i) {
      if (instructions[i].signal >= 0) list[instructions[i].signal] = {rank, static_cast<int>(q), static_cast<int>(i)};
    }
  }
  return list;
}

}  // namespace

Ordering::Ordering(const Plan& plan, std::vector<std::string>& faults) : plan_(plan) {
  int streams = 0;
  for (const Program& program : plan.programs) {
    first_stream_.push_back(streams);
    streams += static_cast<int>(program.queues.size());
    auto& queues = node_.emplace_back();
    for (const Queue& queue : program.queues) queues.emplace_back(queue.instructions.size(), -1);
  }
  match_meetings(faults);
  if (!faults.empty()) return;
  for (size_t r = 0; r < node_.size(); ++r) {
    for (size_t q = 0; q < node_[r].size(); ++q) {
      for (size_t i = 0; i < node_[r][q].size(); ++i) {
        if (node_[r][q][i] >= 0) continue;
        node_[r][q][i] = static_cast<int>(members_.size());
        members_.push_back({{static_cast<int>(r), static_cast<int>(q), static_cast<int>(i)}});
      }
    }
  }
  sort(faults);
  if (faults.empty()) number_clocks();
}

void Ordering::match_meetings(std::vector<std::string>& faults) {
  const auto& first = plan_.programs[0];
  for (size_t r = 1; r < plan_.programs.size(); ++r) {
    const auto& program = plan_.programs[r];
    bool equal = program.queues.size() == first.queues.size();
    for (size_t q = 0; equal && q < program.queues.size(); ++q) equal = program.queues[q].name == first.queues[q].name;
    if (!equal) faults.push_back(fmt::format("rank {}: its queues are not those of rank 0", r));
  }
  if (!faults.empty()) return;
  for (int q = 0; q < static_cast<int>(first.queues.size()); ++q) {
    const std::vector<Place> model = meetings_of(plan_, 0, q);
    std::vector<std::vector<Place>> together;
    for (const Place& place : model) together.push_back({place});
    for (int r = 1; r < static_cast<int>(plan_.programs.size()); ++r) {
      const std::vector<Place> own = meetings_of(plan_, r, q);
      if (own.size() != model.size()) {
        faults.push_back(fmt::format("rank {} queue {}: {} instructions meet others, on rank 0 {}", r,
                                     first.queues[q].name, own.size(), model.size()));
      }
      for (size_t k = 0; k < std::min(own.size(), model.size()); ++k) {
        const Instruction &a = at(plan_, model[k]), &b = at(plan_, own[k]);
        if (a.op == b.op && a.id == b.id && a.bucket == b.bucket) {
          together[k].push_back(own[k]);
          continue;
        }
        faults.push_back(
            fmt::format("{} (id {}) meets {} (id {})", name_of(plan_, own[k]), b.id, name_of(plan_, model[k]), a.id));
        break;
      }
    }
    if (!faults.empty()) return;
    for (const auto& places : together) {
      if (!joins(at(plan_, places[0]).op)) continue;
      for (const Place& p : places) node_[p.rank][p.queue][p.index] = static_cast<int>(members_.size());
      members_.push_back(places);
    }
  }
}

void Ordering::sort(std::vector<std::string>& faults) {
  std::vector<std::vector<int>> next(members_.size());
  std::vector<int> open(members_.size(), 0);
  const auto edge = [&](int from, int to) {
    next[from].push_back(to);
    ++open[to];
  };
  for (size_t r = 0; r < node_.size(); ++r) {
    const std::vector<Place> signalled_by = signallers(plan_.programs[r], static_cast<int>(r));
    for (size_t q = 0; q < node_[r].size(); ++q) {
      for (size_t i = 0; i < node_[r][q].size(); ++i) {
        if (i > 0) edge(node_[r][q][i - 1], node_[r][q][i]);
        for (int event : plan_.programs[r].queues[q].instructions[i].waits) {
          const Place& s = signalled_by[event];
          edge(node_[s.rank][s.queue][s.index], node_[r][q][i]);
        }
      }
    }
  }
  std::deque<int> ready;
  for (size_t n = 0; n < open.size(); ++n) {
    if (open[n] == 0) ready.push_back(static_cast<int>(n));
  }
  while (!ready.empty()) {
    const int n = ready.front();
    ready.pop_front();
    sequence_.push_back(members_[n]);
    for (int m : next[n]) {
      if (--open[m] == 0) ready.push_back(m);
    }
  }
  if (sequence_.size() == members_.size()) return;
  // What is left waits for itself: the first of each queue is enough to find the circle.
  std::string circle;
  for (size_t r = 0; r < node_.size(); ++r) {
    for (size_t q = 0; q < node_[r].size(); ++q) {
      const auto& nodes = node_[r][q];
      const auto stuck = std::find_if(nodes.begin(), nodes.end(), [&](int n) { return open[n] > 0; });
      if (stuck == nodes.end()) continue;
      const Place place{static_cast<int>(r), static_cast<int>(q), static_cast<int>(stuck - nodes.begin())};
      circle += (circle.empty() ? "" : "; ") + name_of(plan_, place);
    }
  }
  faults.push_back("deadlock: these wait for each other: " + circle);
}

void Ordering::number_clocks() {
  const size_t streams = first_stream_.back() + plan_.programs.back().queues.size();
  clocks_.resize(streams);
  for (size_t r = 0; r < node_.size(); ++r) {
    for (size_t q = 0; q < node_[r].size(); ++q) {
      clocks_[first_stream_[r] + q].assign(node_[r][q].size(), std::vector<int>(streams, 0));
    }
  }
  std::vector<std::vector<Place>> signalled_by;
  for (size_t r = 0; r < node_.size(); ++r) signalled_by.push_back(signallers(plan_.programs[r], static_cast<int>(r)));
  std::vector<int> clock(streams);
  // What has ended once `place` has: what had ended when it began, and itself.
  const auto take = [&](const Place& place) {
    const auto& begun = clocks_[stream(place)][place.index];
    for (size_t s = 0; s < streams; ++s) clock[s] = std::max(clock[s], begun[s]);
    clock[stream(place)] = std::max(clock[stream(place)], place.index + 1);
  };
  // Instructions that meet act only once all ranks have entered: all of them follow what any rank did before, but none
  // follows another's part in the meeting itself.
  for (const auto& places : sequence_) {
    std::fill(clock.begin(), clock.end(), 0);
    for (const Place& place : places) {
      if (place.index > 0) take({place.rank, place.queue, place.index - 1});
      for (int event : at(plan_, place).waits) take(signalled_by[place.rank][event]);
    }
    for (const Place& place : places) clocks_[stream(place)][place.index] = clock;
  }
}

bool Ordering::before(Place a, Place b) const { return clocks_[stream(b)][b.index][stream(a)] > a.index; }

}  // namespace tutti
