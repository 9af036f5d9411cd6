// Every schedule for all small numbers of stages, chunks and micro-batches: complete, in order,
// free of deadlock where sends are unbuffered and memory is as tight as the schedule says, and as
// idle as the literature says. The file is longer than most, because every check is one loop over
// all of them, and the loops share what counts slots, sends and idle time.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "plan/make/pipeline_schedule.h"
#include "support/schedule_hops.h"

namespace tutti {

namespace {

using test::Hop;
using test::hops_of;

using Cells = std::vector<std::vector<Cell>>;
using Key = std::tuple<CellKind, int, int>;  // kind, chunk, micro

Key key(const Cell& cell) { return {cell.kind, cell.chunk, cell.micro}; }

struct Numbers {
  std::string schedule;
  int stages, chunks, micro_batches;
  int in_flight = 0;
  int all() const { return stages * chunks_of(schedule, chunks); }
  int stage(int chunk) const { return stage_of(schedule, stages, chunk); }
  CellKind back() const {
    return splits_backward(schedule) ? CellKind::kInput : CellKind::kBackward;
  }
  CellKind last() const {
    return splits_backward(schedule) ? CellKind::kWeight : CellKind::kBackward;
  }
};

std::ostream& operator<<(std::ostream& out, const Numbers& n) {
  return out << n.schedule << ", " << n.stages << " stages of " << n.chunks << " chunks, "
             << n.micro_batches << " micro-batches, " << n.in_flight << " in flight";
}

/// Of the orders made to measure: some chunk is dear, another nearly free.
std::vector<CellCosts> uneven(const Numbers& n) {
  std::vector<CellCosts> costs;
  for (int chunk = 0; chunk < n.all(); ++chunk) {
    const double forward = 0.1 + (chunk * 7 + n.stages) % 5;
    costs.push_back({forward, 1.2 * forward, 0.9 * forward});
  }
  return costs;
}

Cells cells_of(const Numbers& n) {
  if (n.in_flight > 0)
    return fit_schedule(n.schedule, n.stages, n.micro_batches, uneven(n), n.in_flight);
  return make_schedule(n.schedule, n.stages, n.chunks, n.micro_batches);
}

template <typename Check>
void for_all_published(Check check) {
  for (const PipelinePart& part : parts<PipelinePart>()) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int chunks = 1; chunks <= (part.chunks == 0 ? 4 : 1); ++chunks) {
        for (int micro_batches = 1; micro_batches <= 24; ++micro_batches) {
          check(Numbers{std::string(part.name), stages, chunks, micro_batches});
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

template <typename Check>
void for_all_fitted(Check check) {
  for (const std::string& schedule : names_where<PipelinePart>(&PipelinePart::splits)) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int in_flight : {1, 2, stages, stages + 1, 2 * stages}) {
        for (int micro_batches : {1, 2, 5, 8, 16}) {
          check(Numbers{schedule, stages, 1, micro_batches, in_flight});
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

template <typename Check>
void for_all(Check check) {
  for_all_published(check);
  for_all_fitted(check);
}

double last_end(const std::vector<std::vector<CellTime>>& times) {
  double end = 0;
  for (const auto& own : times) end = std::max(end, own.back().end);
  return end;
}

/// How many micro-batches a stage keeps at most, from the beginning of forward to the end of
/// backward.
int most_in_flight(const Numbers& n, const std::vector<Cell>& cells) {
  int now = 0, most = 0;
  for (const Cell& cell : cells) {
    if (cell.kind == CellKind::kForward) most = std::max(most, ++now);
    if (cell.kind == n.last()) --now;
  }
  return most;
}

/// A chunk's micro-batches take the lowest slot that is free: who had it before, -1 for nobody.
std::vector<int> slots_before(const Numbers& n, const std::vector<Cell>& cells, int chunk) {
  std::vector<int> before(n.micro_batches, -1);
  std::vector<std::pair<int, bool>> slots;  // its last user, in use
  for (const Cell& cell : cells) {
    if (cell.chunk != chunk) continue;
    if (cell.kind == CellKind::kForward) {
      auto slot =
          std::find_if(slots.begin(), slots.end(), [](const auto& one) { return !one.second; });
      if (slot == slots.end()) slot = slots.insert(slot, {-1, false});
      before[cell.micro] = slot->first;
      *slot = {cell.micro, true};
    } else if (cell.kind == n.last()) {
      std::find(slots.begin(), slots.end(), std::pair(cell.micro, true))->second = false;
    }
  }
  return before;
}

/// Stages with a compute queue and one queue each for activations in and out and gradients in and
/// out. A send and its receive end together, when both are at the head of their queues; `apart`:
/// what goes down the V and up again has queues of its own, as in plan/make/mesh_messages.cc. A
/// chunk has as many slots as it has micro-batches in flight; each holds what came in for a
/// micro-batch and what it sends on, until the next one takes it.
class Rendezvous {
 public:
  Rendezvous(const Numbers& n, const Cells& cells, const std::vector<Hop>& sends,
             const std::vector<Hop>& receives, bool apart = false)
      : n_(n), cells_(cells), apart_(apart) {
    for (int chunk = 0; chunk < n.all(); ++chunk)
      before_.push_back(slots_before(n, cells[n.stage(chunk)], chunk));
    for (const Hop& hop : sends) queues_[sender(hop)].hops.push_back(hop);
    for (const Hop& hop : receives) queues_[receiver(hop)].hops.push_back(hop);
  }

  /// Whether all queues come to their end.
  bool runs() {
    std::vector<size_t> next(cells_.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t stage = 0; stage < cells_.size(); ++stage) {
        while (next[stage] < cells_[stage].size() && can_compute(cells_[stage][next[stage]])) {
          done_.insert(key(cells_[stage][next[stage]++]));
          moved = true;
        }
      }
      for (auto& [name, queue] : queues_) moved = (std::get<2>(name) && sends(queue)) || moved;
    }
    for (size_t stage = 0; stage < cells_.size(); ++stage) {
      if (next[stage] < cells_[stage].size()) return false;
    }
    return std::all_of(queues_.begin(), queues_.end(), [](const auto& queue) {
      return queue.second.next == queue.second.hops.size();
    });
  }

 private:
  struct Queue {
    std::vector<Hop> hops;
    size_t next = 0;
  };

  using Name = std::tuple<int, bool, bool, bool>;  // stage, gradients, out, up the V
  bool up(const Cell& cell) const { return apart_ && cell.chunk >= n_.stages; }
  static bool gradients(const Hop& hop) { return hop.from.kind != CellKind::kForward; }
  Name sender(const Hop& hop) const { return {hop.source, gradients(hop), true, up(hop.from)}; }
  Name receiver(const Hop& hop) const { return {hop.target, gradients(hop), false, up(hop.to)}; }
  bool arrived(CellKind kind, int chunk, int from, int micro) const {
    const Key made{kind, from, micro};
    return n_.stage(chunk) == n_.stage(from) ? done_.contains(made) : sent_.contains(made);
  }
  bool can_compute(const Cell& cell) const {
    const auto [kind, chunk, micro] = cell;
    if (kind == CellKind::kWeight) return done_.contains({CellKind::kInput, chunk, micro});
    const bool forward = kind == CellKind::kForward;
    if (!forward && !done_.contains({CellKind::kForward, chunk, micro})) return false;
    const int from = forward ? chunk - 1 : chunk + 1, to = forward ? chunk + 1 : chunk - 1;
    if (from >= 0 && from < n_.all() && !arrived(kind, chunk, from, micro)) return false;
    const int before = before_[chunk][micro];
    if (before < 0) return true;
    if (forward && !done_.contains({n_.last(), chunk, before})) return false;
    return to < 0 || to == n_.all() || n_.stage(to) == n_.stage(chunk) ||
           sent_.contains({kind, chunk, before});
  }
  bool sends(Queue& queue) {
    if (queue.next == queue.hops.size()) return false;
    const Hop& hop = queue.hops[queue.next];
    Queue& peer = queues_.at(receiver(hop));
    const int before = before_[hop.to.chunk][hop.to.micro];
    if (!done_.contains(key(hop.from)) || !(peer.hops.at(peer.next) == hop)) return false;
    if (before >= 0 && !done_.contains({n_.last(), hop.to.chunk, before})) return false;
    sent_.insert(key(hop.from));
    ++queue.next;
    ++peer.next;
    return true;
  }

  const Numbers& n_;
  const Cells& cells_;
  std::vector<std::vector<int>> before_;  // [chunk][micro]: who had its slot
  const bool apart_;
  std::map<Name, Queue> queues_;
  std::set<Key> done_, sent_;
};

double measured(const Numbers& n) {
  return idle_share(n.schedule, time_cells(n.schedule, n.stages, n.chunks, cells_of(n)));
}

}  // namespace

TEST(Schedule, EveryCellIsOnItsStageOnce) {
  for_all([](const Numbers& n) {
    const Cells cells = cells_of(n);
    ASSERT_EQ(cells.size(), static_cast<size_t>(n.stages)) << n;
    std::set<Key> all;
    size_t count = 0;
    for (int stage = 0; stage < n.stages; ++stage) {
      for (const Cell& cell : cells[stage]) {
        ASSERT_TRUE(cell.chunk >= 0 && cell.chunk < n.all() && cell.micro >= 0 &&
                    cell.micro < n.micro_batches)
            << n;
        ASSERT_EQ(n.stage(cell.chunk), stage) << n;
        ASSERT_TRUE(cell.kind == CellKind::kForward || cell.kind == n.back() ||
                    cell.kind == n.last())
            << n;
        all.insert(key(cell));
        ++count;
      }
    }
    const int kinds = splits_backward(n.schedule) ? 3 : 2;
    EXPECT_EQ(all.size(), static_cast<size_t>(n.all() * n.micro_batches * kinds)) << n;
    EXPECT_EQ(count, all.size()) << n;
  });
}

TEST(Schedule, MicroBatchesOfAChunkStayInOrder) {
  for_all([](const Numbers& n) {
    std::map<std::pair<CellKind, int>, int> next;
    for (const auto& own : cells_of(n)) {
      for (const Cell& cell : own) ASSERT_EQ(cell.micro, (next[{cell.kind, cell.chunk}]++)) << n;
    }
  });
}

TEST(Schedule, UnbufferedSendsInTheOrderOfHopsNeverDeadlock) {
  for_all([](const Numbers& n) {
    const Cells cells = cells_of(n);
    const std::vector<Hop> hops = hops_of(n.schedule, n.stages, n.chunks, cells);
    EXPECT_TRUE(Rendezvous(n, cells, hops, hops, n.in_flight > 0).runs()) << n;
  });
}

TEST(Schedule, ReceivesInTheOrderOfUseAreSeenToDeadlock) {
  const Numbers n{"zbv", 6, 2, 12};
  const Cells cells = cells_of(n);
  const std::vector<Hop> hops = hops_of(n.schedule, n.stages, n.chunks, cells);
  std::map<Key, size_t> place;
  for (const auto& own : cells) {
    for (size_t i = 0; i < own.size(); ++i) place[key(own[i])] = i;
  }
  std::vector<Hop> by_use = hops;
  std::sort(by_use.begin(), by_use.end(),
            [&](const Hop& a, const Hop& b) { return place.at(key(a.to)) < place.at(key(b.to)); });
  EXPECT_FALSE(Rendezvous(n, cells, hops, by_use).runs()) << "the simulator misses a deadlock";
}

TEST(Schedule, AStagesSendsComeInTheOrderOfItsCells) {
  for_all([](const Numbers& n) {
    const Cells cells = cells_of(n);
    std::vector<std::vector<Cell>> sent(n.stages), made(n.stages);
    for (const Hop& hop : hops_of(n.schedule, n.stages, n.chunks, cells)) {
      ASSERT_EQ(n.stage(hop.from.chunk), hop.source) << n;
      ASSERT_EQ(n.stage(hop.to.chunk), hop.target) << n;
      sent[hop.source].push_back(hop.from);
    }
    for (int stage = 0; stage < n.stages; ++stage) {
      for (const Cell& cell : cells[stage]) {
        const int next = cell.kind == CellKind::kForward ? cell.chunk + 1 : cell.chunk - 1;
        const bool leaves =
            cell.kind != CellKind::kWeight && next >= 0 && next < n.all() && n.stage(next) != stage;
        if (leaves) made[stage].push_back(cell);
      }
    }
    EXPECT_EQ(sent, made) << n;
  });
}

TEST(Schedule, AStageKeepsNoMoreThanTheLiteratureSays) {
  for_all_published([](const Numbers& n) {
    const Cells cells = cells_of(n);
    for (int stage = 0; stage < n.stages; ++stage) {
      const int chunks = chunks_of(n.schedule, n.chunks);
      int most = n.stages - stage;  // 1f1b
      if (n.schedule == "gpipe") most = n.micro_batches;
      if (n.schedule == "interleaved" && chunks > 1)
        most = (chunks - 1) * n.stages + 2 * (n.stages - 1 - stage) + 1;
      if (n.schedule == "zero-bubble") most = n.stages;
      if (n.schedule == "zbv") most = 2 * n.stages;
      EXPECT_LE(most_in_flight(n, cells[stage]), std::min(most, n.micro_batches * chunks))
          << n << ", stage " << stage;
    }
  });
}

TEST(Schedule, TheBubbleIsThatOfTheFormula) {
  for_all_published([](const Numbers& n) {
    // Megatron's order is made for whole groups of P micro-batches; others wait for what a full
    // group would have done.
    if (n.schedule == "interleaved" && n.chunks > 1 && n.micro_batches % n.stages != 0) return;
    EXPECT_NEAR(measured(n), bubble_formula(n.schedule, n.stages, n.chunks, n.micro_batches), 1e-12)
        << n;
  });
}

TEST(Schedule, FormulasGiveThePublishedShares) {
  EXPECT_DOUBLE_EQ(bubble_formula("gpipe", 4, 1, 8), 3.0 / 11);
  EXPECT_DOUBLE_EQ(bubble_formula("1f1b", 8, 1, 16), 7.0 / 23);
  EXPECT_DOUBLE_EQ(bubble_formula("interleaved", 4, 2, 8), 3.0 / 19);
  EXPECT_DOUBLE_EQ(bubble_formula("zero-bubble", 4, 1, 8), 3.0 / 27);
  EXPECT_DOUBLE_EQ(bubble_formula("zero-bubble", 4, 1, 2), (3.0 + 2) / (6 + 3 + 2));
  EXPECT_DOUBLE_EQ(bubble_formula("zbv", 8, 1, 16), 0);
  EXPECT_DOUBLE_EQ(bubble_formula("zbv", 4, 1, 5), 2.0 / (30 + 2));
}

TEST(Schedule, AGroupThatIsNotFullCostsInterleavedLessThanAFullOne) {
  for (int stages = 2; stages <= 8; ++stages) {
    for (int chunks = 2; chunks <= 4; ++chunks) {
      for (int many = 1; many <= 24; ++many) {
        const auto last = [&](int micro_batches) {
          const Numbers n{"interleaved", stages, chunks, micro_batches};
          return last_end(time_cells(n.schedule, stages, chunks, cells_of(n)));
        };
        EXPECT_LE(last(many), last((many + stages - 1) / stages * stages))
            << stages << ' ' << chunks << ' ' << many;
      }
    }
  }
}

TEST(FitSchedule, AChunkKeepsNoMoreThanIsAllowed) {
  for_all_fitted([](const Numbers& n) {
    const Cells cells = cells_of(n);
    for (int chunk = 0; chunk < n.all(); ++chunk) {
      std::vector<Cell> own;
      std::copy_if(cells[n.stage(chunk)].begin(), cells[n.stage(chunk)].end(),
                   std::back_inserter(own), [&](const Cell& cell) { return cell.chunk == chunk; });
      EXPECT_LE(most_in_flight(n, own), n.in_flight) << n << ", chunk " << chunk;
    }
  });
}

TEST(FitSchedule, AStagesWeightPartsOfAMicroBatchGoFromItsLastChunkToItsFirst) {
  for_all_fitted([](const Numbers& n) {
    for (const auto& own : cells_of(n)) {
      std::map<int, int> last;  // chunk by micro-batch
      for (const Cell& cell : own) {
        if (cell.kind != CellKind::kWeight) continue;
        ASSERT_LT(cell.chunk, last.try_emplace(cell.micro, n.all()).first->second) << n;
        last[cell.micro] = cell.chunk;
      }
    }
  });
}

TEST(FitSchedule, EvenChunksWithRoomTakeHardlyLongerThanThePublishedOrder) {
  for (const std::string& schedule : names_where<PipelinePart>(&PipelinePart::splits)) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int micro_batches = 1; micro_batches <= 24; ++micro_batches) {
        const Numbers n{schedule, stages, 1, micro_batches};
        const std::vector<CellCosts> even(n.all());
        const Cells fitted = fit_schedule(schedule, stages, micro_batches, even, 2 * stages);
        EXPECT_LE(last_end(time_cells(schedule, stages, 1, fitted)),
                  1.03 * last_end(time_cells(schedule, stages, 1, cells_of(n))))
            << n;
      }
    }
  }
}

// Of a small GPT on two stages: two, one, two and one blocks, the head after the last.
TEST(FitSchedule, UnevenChunksKeepTheirStagesBusy) {
  const std::vector<CellCosts> costs{{41, 47, 39}, {20, 24, 19}, {41, 47, 39}, {21, 25, 20}};
  double work = 0;
  for (int chunk : {0, 3})
    work += 8 * (costs[chunk].forward + costs[chunk].input + costs[chunk].weight);
  const auto end = [&](const Cells& cells) {
    return last_end(time_cells("zbv", 2, 1, cells, costs));
  };
  EXPECT_GT(end(make_schedule("zbv", 2, 1, 8)), 1.03 * work);
  EXPECT_LT(end(fit_schedule("zbv", 2, 8, costs, 4)), 1.015 * work);
}

TEST(TimeCells, CostsAndHopsAreCounted) {
  const Numbers n{"1f1b", 2, 1, 1};
  const auto times =
      time_cells(n.schedule, 2, 1, cells_of(n), {{.forward = 2, .input = 3, .weight = 4}}, 0.5);
  EXPECT_EQ(times[0][0].end, 2);
  EXPECT_EQ(times[1][0].begin, 2.5);
  EXPECT_EQ(times[1][1].begin, 4.5);
  EXPECT_EQ(times[1][1].end, 11.5);
  EXPECT_EQ(times[0][1].begin, 12);
  EXPECT_EQ(times[0][1].end, 19);
}

TEST(TimeCells, AnInputPartLeavesBeforeTheWeightPart) {
  const Numbers n{"zero-bubble", 2, 1, 1};
  const auto times =
      time_cells(n.schedule, 2, 1, cells_of(n), {{.forward = 2, .input = 3, .weight = 4}}, 0.5);
  EXPECT_EQ(times[1][2].end, 11.5);
  EXPECT_EQ(times[0][1].begin, 8);
  EXPECT_EQ(times[0][2].end, 15);
}

}  // namespace tutti
