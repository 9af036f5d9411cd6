// A graph of nodes, each one instruction or several that meet. Sorting it finds circles; vector
// clocks along the sorted order then answer whether one instruction has ended before another acts.
#include "plan/check/ordering.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <unordered_map>

namespace tutti {

const Instruction& at(const Plan& plan, Place place) {
  return plan.programs[place.rank].queues[place.queue].instructions[place.index];
}

std::string name_of(const Plan& plan, Place place) {
  return fmt::format("rank {} queue {} #{} {}", place.rank,
                     plan.programs[place.rank].queues[place.queue].name, place.index,
                     to_string(at(plan, place)));
}

namespace {

/// Acquire is in the same order everywhere, but it waits for the peers' step before, not
/// for their Acquire.
bool joins(Op op) { return meets(op) && op != Op::kAcquire; }

/// The instruction that signals each event of a rank.
std::vector<Place> signallers(const Program& program, int rank) {
  std::vector<Place> list(program.events);
  for (size_t q = 0; q < program.queues.size(); ++q) {
    const auto& instructions = program.queues[q].instructions;
    for (size_t i = 0; i < instructions.size(); ++i) {
      if (instructions[i].signal >= 0)
        list[instructions[i].signal] = {rank, static_cast<int>(q), static_cast<int>(i)};
    }
  }
  return list;
}

}  // namespace

Ordering::Ordering(const Plan& plan, std::vector<std::string>& faults) : plan_(plan) {
  // Queues of all ranks are numbered as streams, instructions as places among the clocks.
  int instructions = 0;
  for (const Program& program : plan.programs) {
    signalled_by_.push_back(signallers(program, static_cast<int>(first_stream_.size())));
    first_stream_.push_back(streams_);
    streams_ += static_cast<int>(program.queues.size());
    auto& queues = node_.emplace_back();
    for (const Queue& queue : program.queues) {
      queues.emplace_back(queue.instructions.size(), -1);
      first_clock_.push_back(instructions);
      instructions += static_cast<int>(queue.instructions.size());
    }
  }

  // What meets is one node; every other instruction is a node of its own.
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

/// Makes one node of several instructions.
void Ordering::join(std::vector<Place> places) {
  for (const Place& p : places) node_[p.rank][p.queue][p.index] = static_cast<int>(members_.size());
  members_.push_back(std::move(places));
}

/// The id alone says who meets whom. That all ranks see their meetings in the same order follows if
/// there is no circle.
void Ordering::match_meetings(std::vector<std::string>& faults) {
  std::unordered_map<uint32_t, std::vector<Place>> meetings, letters;
  std::vector<uint32_t> ids;  // in the order in which they are first seen
  for (int r = 0; r < static_cast<int>(plan_.programs.size()); ++r) {
    for (int q = 0; q < static_cast<int>(plan_.programs[r].queues.size()); ++q) {
      const auto& instructions = plan_.programs[r].queues[q].instructions;
      for (int k = 0; k < static_cast<int>(instructions.size()); ++k) {
        const Op op = instructions[k].op;
        if (op == Op::kSend || op == Op::kRecv) letters[instructions[k].id].push_back({r, q, k});
        if (!joins(op)) continue;
        auto& places = meetings[instructions[k].id];
        if (places.empty()) ids.push_back(instructions[k].id);
        places.push_back({r, q, k});
      }
    }
  }

  // A meeting is sound if all members mean the same and are exactly its group. Ranks were visited
  // in ascending order, so the lists can be compared.
  std::vector<int> all(plan_.programs.size());
  std::iota(all.begin(), all.end(), 0);
  for (uint32_t id : ids) {
    const auto& places = meetings[id];
    const Instruction& first = at(plan_, places[0]);
    std::vector<int> ranks;
    for (const Place& place : places) {
      ranks.push_back(place.rank);
      const Instruction& i = at(plan_, place);
      const bool equal = i.op == first.op && i.group == first.group && i.parcel == first.parcel &&
                         i.block == first.block && i.round == first.round &&
                         i.segment == first.segment && i.exchange == first.exchange;
      if (!equal)
        faults.push_back(fmt::format("{} meets {} (id {})", name_of(plan_, place),
                                     name_of(plan_, places[0]), id));
    }
    const auto& group = first.group < 0 ? all : plan_.groups[first.group];
    if (ranks != group) {
      faults.push_back(fmt::format("{} (id {}): ranks [{}] come to it, its group is [{}]",
                                   name_of(plan_, places[0]), id, fmt::join(ranks, " "),
                                   fmt::join(group, " ")));
    }
    join(places);
  }

  // A letter is sound if it has one sender and one receiver, who mean each other.
  for (auto& [id, places] : letters) {
    const bool pair = places.size() == 2 && at(plan_, places[0]).peer == places[1].rank &&
                      at(plan_, places[1]).peer == places[0].rank &&
                      at(plan_, places[0]).op != at(plan_, places[1]).op;
    if (!pair)
      faults.push_back(fmt::format("{} (id {}): has no partner", name_of(plan_, places[0]), id));
    if (pair) join(std::move(places));
  }
}

/// Topological order (Kahn's algorithm): a node is ready when nothing that it waits for is open.
void Ordering::sort(std::vector<std::string>& faults) {
  // Edges: along each queue, and from the signaller of each event to those who wait for it.
  std::vector<std::vector<int>> next(members_.size());
  std::vector<int> open(members_.size(), 0);
  const auto edge = [&](int from, int to) {
    next[from].push_back(to);
    ++open[to];
  };
  for (size_t r = 0; r < node_.size(); ++r) {
    for (size_t q = 0; q < node_[r].size(); ++q) {
      for (size_t i = 0; i < node_[r][q].size(); ++i) {
        if (i > 0) edge(node_[r][q][i - 1], node_[r][q][i]);
        for (int event : plan_.programs[r].queues[q].instructions[i].waits) {
          const Place& s = signalled_by_[r][event];
          edge(node_[s.rank][s.queue][s.index], node_[r][q][i]);
        }
      }
    }
  }

  // Nodes leave in the order in which they became ready.
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

  // What is left waits for itself. The first instruction of each queue that is stuck is enough to
  // find the circle.
  std::string circle;
  for (size_t r = 0; r < node_.size(); ++r) {
    for (size_t q = 0; q < node_[r].size(); ++q) {
      const auto& nodes = node_[r][q];
      const auto stuck =
          std::find_if(nodes.begin(), nodes.end(), [&](int n) { return open[n] > 0; });
      if (stuck == nodes.end()) continue;
      const Place place{static_cast<int>(r), static_cast<int>(q),
                        static_cast<int>(stuck - nodes.begin())};
      circle += (circle.empty() ? "" : "; ") + name_of(plan_, place);
    }
  }
  faults.push_back("deadlock: these wait for each other: " + circle);
}

/// Vector clocks: what has ended when an instruction acts is what had ended when the one before it
/// on its queue and the signallers of its events acted, and those themselves.
void Ordering::number_clocks() {
  const auto streams = static_cast<size_t>(streams_);
  clocks_.assign(static_cast<size_t>(first_clock_.back() + node_.back().back().size()) * streams,
                 0);

  // What has ended once `place` has: what had ended when it began, and itself.
  const auto take = [&](std::vector<int>& clock, const Place& place) {
    const int* begun = this->clock(place);
    for (size_t s = 0; s < streams; ++s) clock[s] = std::max(clock[s], begun[s]);
    clock[stream(place)] = std::max(clock[stream(place)], place.index + 1);
  };

  // What has ended when `place` is entered.
  const auto enter = [&](std::vector<int>& clock, const Place& place) {
    if (place.index > 0) take(clock, {place.rank, place.queue, place.index - 1});
    for (int event : at(plan_, place).waits) take(clock, signalled_by_[place.rank][event]);
  };

  // Instructions that meet act only once all ranks have entered: all of them follow what any rank
  // did before, but none follows another's part in the meeting itself. Reduce and Gather wait only
  // for those whose values they take; and a send may be buffered after all, so only Recv follows
  // what its sender did.
  std::vector<int> clock(streams);
  const auto keep = [&](const Place& place) {
    std::copy(clock.begin(), clock.end(),
              clocks_.begin() + static_cast<std::ptrdiff_t>(clock_place(place)));
  };
  for (const auto& places : sequence_) {
    std::fill(clock.begin(), clock.end(), 0);
    const Op op = at(plan_, places[0]).op;
    if (op == Op::kSend || op == Op::kRecv) {
      const size_t send = op == Op::kSend ? 0 : 1;
      enter(clock, places[send]);
      keep(places[send]);
      enter(clock, places[1 - send]);
      keep(places[1 - send]);
    } else if (op == Op::kReduce || op == Op::kGather) {
      for (const Place& place : places) {
        std::fill(clock.begin(), clock.end(), 0);
        enter(clock, place);
        keep(place);
      }
    } else {
      for (const Place& place : places) enter(clock, place);
      for (const Place& place : places) keep(place);
    }
  }

  // What has ended when a rank ends its step: the last instruction of each of its queues.
  last_.assign(node_.size(), std::vector<int>(streams, 0));
  for (int r = 0; r < static_cast<int>(node_.size()); ++r) {
    for (int q = 0; q < static_cast<int>(node_[r].size()); ++q) {
      const int size = static_cast<int>(node_[r][q].size());
      if (size > 0) take(last_[r], {r, q, size - 1});
    }
  }
}

bool Ordering::before_entry(Place a, Place b) const {
  const auto ended_with = [&](const Place& p) { return a == p || before(a, p); };
  if (b.index > 0 && ended_with({b.rank, b.queue, b.index - 1})) return true;
  const auto& waits = at(plan_, b).waits;
  return std::any_of(waits.begin(), waits.end(),
                     [&](int event) { return ended_with(signalled_by_[b.rank][event]); });
}

bool Ordering::follows(Place b, int rank) const {
  const int* ended = clock(b) + first_stream_[rank];
  return std::any_of(ended, ended + node_[rank].size(), [](int count) { return count > 0; });
}

}  // namespace tutti
