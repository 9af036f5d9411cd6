// A discrete-event simulation. Where cores are shared, all work of one kind on a host goes equally
// fast at any moment (processor sharing). So a host has a clock of work done for each kind, v (its
// virtual time), and a task ends when that clock has gone on by the task's seconds. An event then
// costs a logarithm, however many tasks it slows down.
#include "plan/search/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "base/error.h"

namespace tutti {

namespace {

struct Place {
  int program = 0, queue = 0;
};

/// One piece of work. When the last one of a meeting is done, the instructions of all members end.
struct Task {
  double end = 0;       // on the clock of its heap: v when it starts, plus its seconds
  uint64_t number = 0;  // of equal ends the task that started first is first
  int meeting = -1;
  int weight = 1;
  bool operator>(const Task& other) const {
    return std::tie(end, number) > std::tie(other.end, other.number);
  }
};
using Heap = std::priority_queue<Task, std::vector<Task>, std::greater<>>;

/// The cores of a host; or, where the cost model has no pace, the processors of all ranks.
struct Pool {
  double v[kResources] = {};
  double now = 0;  // the moment that v stands for
  Heap tasks[kResources];
  int active = 0;  // queues at work; a program counts for all ranks that it stands for
};

/// Instructions that begin and end together; one that meets nobody is a meeting of one.
struct Meeting {
  size_t expected = 1;
  std::vector<Place> entered;
  size_t running = 0;  // members whose work has not ended
};

bool moves_bytes(Op op) {
  return meets(op) || op == Op::kSend || op == Op::kRecv || op == Op::kFetch || op == Op::kEvict;
}

class Engine {
 public:
  Engine(std::span<const Program> programs, const CostModel& cost, std::span<const int> weights)
      : programs_(programs), cost_(cost), weights_(weights) {
    // How many members a meeting has is counted in the programs that are there: so some ranks may
    // stand for all.
    for (size_t p = 0; p < programs.size(); ++p) {
      const Program& program = programs[p];
      RankSimulation& rank = result_.ranks.emplace_back();
      rank.rank = program.rank;
      rank.memory = forecast_memory(program);
      at_.emplace_back(program.queues.size(), 0);
      signalled_.emplace_back(static_cast<size_t>(program.events), false);
      waiting_.emplace_back(static_cast<size_t>(program.events));
      pool_of_.push_back(pool(program.rank));
      for (const Queue& queue : program.queues) {
        rank.queues.emplace_back(queue.instructions.size());
        for (const Instruction& i : queue.instructions)
          if (shared(i.op)) ++members_[key(program, i)];
      }
    }
  }

  Simulation run() {
    // Every queue enters its first instruction; from then on only the end of a task lets
    // anything go on.
    // A queue that has not come to its end waits for something that never happens.
    for (size_t p = 0; p < programs_.size(); ++p)
      for (size_t q = 0; q < programs_[p].queues.size(); ++q)
        advance({static_cast<int>(p), static_cast<int>(q)});
    while (next()) {
    }
    for (size_t p = 0; p < programs_.size(); ++p) {
      check_ended(p);
      account(p);
    }
    return std::move(result_);
  }

 private:
  using Key = std::tuple<uint32_t, int, int>;  // id, then who meets: a group, or a pair

  static bool shared(Op op) { return meets(op) || op == Op::kSend || op == Op::kRecv; }
  static Key key(const Program& program, const Instruction& i) {
    if (i.op == Op::kSend) return {i.id, -2 - program.rank, i.peer};
    if (i.op == Op::kRecv) return {i.id, -2 - i.peer, program.rank};
    return {i.id, i.group, -1};
  }

  /// The pool of a rank's host, made when first asked for.
  size_t pool(int rank) {
    const int host =
        !cost_.pace || cost_.hosts.empty() ? 0 : cost_.hosts[static_cast<size_t>(rank)];
    const auto [it, fresh] = pool_of_host_.try_emplace(host, pools_.size());
    if (fresh) pools_.emplace_back();
    return it->second;
  }
  int weight(int program) const {
    return weights_.empty() ? 1 : weights_[static_cast<size_t>(program)];
  }
  const Instruction& instruction(Place place) const {
    const auto& queue =
        programs_[static_cast<size_t>(place.program)].queues[static_cast<size_t>(place.queue)];
    return queue
        .instructions[at_[static_cast<size_t>(place.program)][static_cast<size_t>(place.queue)]];
  }
  InstructionTime& time(Place place) {
    auto& queue =
        result_.ranks[static_cast<size_t>(place.program)].queues[static_cast<size_t>(place.queue)];
    return queue[at_[static_cast<size_t>(place.program)][static_cast<size_t>(place.queue)]];
  }
  bool ended(Place place) const {
    const auto p = static_cast<size_t>(place.program), q = static_cast<size_t>(place.queue);
    return at_[p][q] == programs_[p].queues[q].instructions.size();
  }

  /// Lets the instruction at the head of a queue enter if its events have been signalled.
  void advance(Place place) {
    if (ended(place)) return;
    const auto p = static_cast<size_t>(place.program);
    const Instruction& i = instruction(place);

    // A queue waits for one event at a time: finish() calls again when that one is signalled.
    for (int event : i.waits) {
      if (signalled_[p][static_cast<size_t>(event)]) continue;
      waiting_[p][static_cast<size_t>(event)].push_back(place.queue);
      return;
    }

    // An instruction that meets nobody starts at once.
    time(place).entered = now_;
    if (!shared(i.op)) {
      const int meeting = take_meeting();
      meetings_[static_cast<size_t>(meeting)].entered = {place};
      start(meeting);
      return;
    }

    // The others start with the last member that enters. The key is free again from then on, for
    // the next meeting of that id and group.
    const Key k = key(programs_[p], i);
    const auto [it, fresh] = open_.try_emplace(k, -1);
    if (fresh) {
      it->second = take_meeting();
      meetings_[static_cast<size_t>(it->second)].expected =
          i.op == Op::kSend || i.op == Op::kRecv ? 2 : members_.at(k);
    }
    Meeting& meeting = meetings_[static_cast<size_t>(it->second)];
    meeting.entered.push_back(place);
    if (meeting.entered.size() < meeting.expected) return;
    const int number = it->second;
    open_.erase(it);
    start(number);
  }

  /// A number for a meeting; those of meetings that are over are used again.
  int take_meeting() {
    if (free_.empty()) {
      meetings_.emplace_back();
      return static_cast<int>(meetings_.size()) - 1;
    }
    const int number = free_.back();
    free_.pop_back();
    meetings_[static_cast<size_t>(number)] = {};
    return number;
  }

  /// All members have entered: their work begins.
  void start(int number) {
    Meeting& meeting = meetings_[static_cast<size_t>(number)];
    for (const Place& place : meeting.entered) {
      const auto p = static_cast<size_t>(place.program);
      const Instruction& i = instruction(place);
      const Work work = cost_.work(programs_[p], i);
      time(place).begin = now_;
      RankSimulation& rank = result_.ranks[p];
      rank.received[static_cast<size_t>(work.axis)] += work.received;
      rank.link[static_cast<size_t>(work.axis)] += work.link;
      if (i.op == Op::kRecv) continue;  // the sender's work is that of both

      // Before the number of active queues changes, the pool's clocks go on at the pace they
      // had so far.
      ++meeting.running;
      Pool& pool = pools_[pool_of_[p]];
      catch_up(pool);
      const auto resource = cost_.pace ? static_cast<size_t>(work.resource) : 0;
      pool.tasks[resource].push(
          {pool.v[resource] + work.seconds, tasks_++, number, weight(place.program)});
      pool.active += weight(place.program);
    }
  }

  /// How fast a pool's clock of one kind of work goes: 1 if every rank has processors of its own.
  double pace(const Pool& pool, size_t resource) const {
    return cost_.pace ? cost_.pace(static_cast<Resource>(resource), pool.active) : 1;
  }
  /// Brings a pool's clocks to the present moment.
  void catch_up(Pool& pool) const {
    if (!cost_.pace) {
      // v is the time itself: a sum of steps would gather rounding errors at other ranks' events.
      pool.v[0] = now_;
    } else if (now_ > pool.now) {
      for (size_t r = 0; r < kResources; ++r) pool.v[r] += (now_ - pool.now) * pace(pool, r);
    }
    pool.now = now_;
  }

  /// Ends the task that is due next; false: there is none left.
  bool next() {
    // Each heap has the task that ends first on its clock; the pool's pace says when that will be.
    double first = std::numeric_limits<double>::infinity();
    Pool* where = nullptr;
    size_t which = 0;
    for (Pool& pool : pools_) {
      for (size_t r = 0; r < kResources; ++r) {
        if (pool.tasks[r].empty()) continue;
        const double end = pool.tasks[r].top().end;
        const double at =
            cost_.pace ? pool.now + std::max(0.0, end - pool.v[r]) / pace(pool, r) : end;
        if (at >= first) continue;
        first = at, where = &pool, which = r;
      }
    }
    if (where == nullptr) return false;

    // The clock is set to the task's end, so that rounding does not leave it a little before it.
    now_ = first;
    catch_up(*where);
    const Task task = where->tasks[which].top();
    where->v[which] = task.end;
    where->tasks[which].pop();
    where->active -= task.weight;

    // What the members let go on may take the meeting's number again, so they are taken out
    // of it first.
    Meeting& meeting = meetings_[static_cast<size_t>(task.meeting)];
    if (--meeting.running > 0) return true;
    const std::vector<Place> members = std::move(meeting.entered);
    free_.push_back(task.meeting);
    for (const Place& place : members) finish(place);
    return true;
  }

  /// Ends an instruction: its event is signalled, and the queues that waited for the event, and its
  /// own, go on.
  void finish(Place place) {
    const auto p = static_cast<size_t>(place.program), q = static_cast<size_t>(place.queue);
    time(place).end = now_;
    result_.seconds = std::max(result_.seconds, now_);
    const int signal = instruction(place).signal;
    ++at_[p][q];
    if (signal >= 0) {
      signalled_[p][static_cast<size_t>(signal)] = true;
      for (int queue : std::exchange(waiting_[p][static_cast<size_t>(signal)], {}))
        advance({place.program, queue});
    }
    advance(place);
  }

  /// Names the instruction at which a queue is stuck.
  void check_ended(size_t p) const {
    for (size_t q = 0; q < programs_[p].queues.size(); ++q) {
      const Place place{static_cast<int>(p), static_cast<int>(q)};
      if (!ended(place))
        throw Error(fmt::format("rank {} waits for ever on queue {} at {}", programs_[p].rank,
                                programs_[p].queues[q].name, to_string(instruction(place))));
    }
  }

  /// Divides the time of a rank's compute queue into busy, exposed and bubble (simulate.h).
  void account(size_t p) {
    const Program& program = programs_[p];
    RankSimulation& rank = result_.ranks[p];
    if (rank.queues.empty() || rank.queues[0].empty()) return;

    // When bytes of this rank are on their way, on any queue.
    std::vector<std::pair<double, double>> moving;
    for (size_t q = 0; q < rank.queues.size(); ++q)
      for (size_t i = 0; i < rank.queues[q].size(); ++i)
        if (moves_bytes(program.queues[q].instructions[i].op) &&
            rank.queues[q][i].end > rank.queues[q][i].begin)
          moving.emplace_back(rank.queues[q][i].begin, rank.queues[q][i].end);
    std::sort(moving.begin(), moving.end());

    // The part of an interval in which something moves. Intervals come in ascending order, so one
    // pass over `moving` serves them all, and what overlaps is counted once.
    size_t at = 0;
    double reached = 0;  // everything that moves before this has been counted
    const auto moved_in = [&](double begin, double end) {
      double sum = 0;
      reached = std::max(reached, begin);
      while (at < moving.size() && moving[at].first < end) {
        const double from = std::max(moving[at].first, reached),
                     to = std::min(moving[at].second, end);
        if (to > from) sum += to - from, reached = to;
        if (moving[at].second > end) break;
        ++at;
      }
      return sum;
    };

    // Gaps between instructions of compute, and instructions there that move bytes themselves, are
    // exposed as far as something moves, and else bubble.
    double before = rank.queues[0].front().begin;
    for (size_t i = 0; i < rank.queues[0].size(); ++i) {
      const InstructionTime& t = rank.queues[0][i];
      const bool moves = moves_bytes(program.queues[0].instructions[i].op);
      const double idle_until = moves ? t.end : t.begin;
      if (idle_until > before) {
        const double exposed = moved_in(before, idle_until);
        rank.exposed += exposed;
        rank.bubble += idle_until - before - exposed;
      }
      if (!moves) rank.busy += t.end - t.begin;
      before = t.end;
    }
  }

  std::span<const Program> programs_;
  const CostModel& cost_;
  std::span<const int> weights_;
  Simulation result_;
  double now_ = 0;
  uint64_t tasks_ = 0;
  std::vector<std::vector<size_t>> at_;                 // [program][queue]
  std::vector<std::vector<bool>> signalled_;            // [program][event]
  std::vector<std::vector<std::vector<int>>> waiting_;  // [program][event]: queues
  std::map<Key, size_t> members_;
  std::map<Key, int> open_;  // meetings that not all members have entered
  std::vector<Meeting> meetings_;
  std::vector<int> free_;  // numbers of meetings that are over
  std::vector<Pool> pools_;
  std::map<int, size_t> pool_of_host_;
  std::vector<size_t> pool_of_;  // by program
};

/// The mean over the ranks of a part of their time, as a share of the step's seconds.
double mean_share(const Simulation& simulation, double RankSimulation::*part) {
  double sum = 0;
  for (const RankSimulation& rank : simulation.ranks) sum += rank.*part;
  const double whole = simulation.seconds * static_cast<double>(simulation.ranks.size());
  return whole > 0 ? sum / whole : 0;
}

}  // namespace

double Simulation::busy_share() const { return mean_share(*this, &RankSimulation::busy); }
double Simulation::exposed_share() const { return mean_share(*this, &RankSimulation::exposed); }
double Simulation::bubble_share() const { return mean_share(*this, &RankSimulation::bubble); }

int64_t Simulation::peak_bytes() const {
  int64_t peak = 0;
  for (const RankSimulation& rank : ranks) peak = std::max(peak, rank.memory.total());
  return peak;
}

Simulation simulate(std::span<const Program> programs, const CostModel& cost,
                    std::span<const int> weights) {
  TUTTI_CHECK(weights.empty() || weights.size() == programs.size(), "{} weights of {} programs",
              weights.size(), programs.size());
  return Engine(programs, cost, weights).run();
}

}  // namespace tutti
