// Runs the programs of all ranks of a plan, in a random interleaving, on gradients that are hashes: adding is neither
// commutative nor associative, so two sums are equal only if they are the same additions in the same order. Knows
// nothing of the checker.
//
//   steps      run one after another on each rank; ranks may be a step apart, as in a real run
//   slices     every gradient is held as one value per rank: in a Reduce rank r folds slice r of everybody's partials
//   windows    true: Update reads slice s from rank s's first partial (shm); false: Gather copies it (messages)
#pragma once

#include <fmt/format.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "plan/ir/program.h"
#include "plan/ir/shape.h"

namespace tutti::test {

class PlanRunner {
 public:
  PlanRunner(Plan plan, const ModelShape& model, int micro_batches, bool windows, uint64_t seed)
      : plan_(std::move(plan)), model_(model), micro_batches_(micro_batches), windows_(windows), random_(seed) {
    for (const Program& program : plan_.programs) ranks_.push_back({program});
  }

  /// What went wrong; empty: every Update of every step read the job's sum.
  std::vector<std::string> run(int steps) {
    steps_ = steps;
    for (Rank& rank : ranks_) rank.begin_step();
    while (problems_.empty()) {
      std::vector<std::pair<int, int>> enabled;
      bool finished = true;
      for (int r = 0; r < size(); ++r) {
        if (ranks_[r].step >= steps) continue;
        finished = false;
        for (int q = 0; q < static_cast<int>(ranks_[r].at.size()); ++q) {
          if (can_run(r, q)) enabled.emplace_back(r, q);
        }
      }
      if (finished) break;
      if (enabled.empty()) {
        problem("deadlock");
        break;
      }
      const auto [r, q] = enabled[random_() % enabled.size()];
      execute(r, q);
    }
    return problems_;
  }

 private:
  using Part = std::tuple<int, int>;                    // (writing block, segment)
  using Value = std::map<Part, std::vector<uint64_t>>;  // a hash per slice; 0: never written
  struct Content {
    int unit = -1;
    Value value;
  };
  struct Rank {
    const Program& program;
    int step = 0;
    std::vector<size_t> at = {};  // by queue
    std::set<int> events = {};
    std::set<std::pair<int, uint32_t>> met = {};  // (step, id) of meetings left
    std::map<int, Content> gradients = {};
    std::map<int, int> updated = {};  // unit -> steps
    void begin_step() {
      at.assign(program.queues.size(), 0);
      events.clear();
    }
  };

  int size() const { return static_cast<int>(ranks_.size()); }
  void problem(const std::string& text) { problems_.push_back(text); }
  const Instruction* front(int r, int q) const {
    const auto& list = ranks_[r].program.queues[q].instructions;
    return ranks_[r].at[q] < list.size() ? &list[ranks_[r].at[q]] : nullptr;
  }
  bool waits_over(int r, const Instruction& i) const {
    for (int e : i.waits) {
      if (!ranks_[r].events.contains(e)) return false;
    }
    return true;
  }
  bool can_run(int r, int q) const {
    const Instruction* i = front(r, q);
    if (i == nullptr || !waits_over(r, *i)) return false;
    const int step = ranks_[r].step;
    for (int s = 0; s < size(); ++s) {
      if (i->op == Op::kAcquire) {
        for (int unit : plan_.buckets[i->bucket].units) {
          const auto it = ranks_[s].updated.find(unit);
          if ((it == ranks_[s].updated.end() ? 0 : it->second) < step) return false;
        }
      } else if (meets(i->op) && s != r && !ranks_[s].met.contains({step, i->id})) {
        const Instruction* other = ranks_[s].step == step ? front(s, q) : nullptr;
        if (other == nullptr || other->id != i->id || other->op != i->op || !waits_over(s, *other)) return false;
      }
    }
    return true;
  }

  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
    return x ^ (x >> 32);
  }
  static uint64_t add(uint64_t a, uint64_t b) { return mix(mix(a + 1) * 3 + b); }
  static uint64_t term(int step, int lane, int micro, Part part, int unit) {
    uint64_t h = 17;
    for (int v : {step, lane, micro, std::get<0>(part), std::get<1>(part), unit})
      h = mix(h * 31 + static_cast<uint64_t>(v) + 1);
    return h;
  }
  uint64_t lanes_sum(int step, int64_t begin, int64_t end, Part part, int unit) const {
    if (end - begin == 1) {
      uint64_t sum = term(step, static_cast<int>(begin), 0, part, unit);
      for (int m = 1; m < micro_batches_; ++m) sum = add(sum, term(step, static_cast<int>(begin), m, part, unit));
      return sum;
    }
    int64_t left = 1;
    while (left * 2 < end - begin) left *= 2;
    return add(lanes_sum(step, begin, begin + left, part, unit), lanes_sum(step, begin + left, end, part, unit));
  }
  std::vector<Part> parts_of(int unit) const {
    std::vector<Part> parts;
    for (int b = 0; b < static_cast<int>(model_.blocks.size()); ++b) {
      const auto& users = model_.blocks[b].writes_units;
      if (b != unit && std::count(users.begin(), users.end(), unit) == 0) continue;
      for (int s = 0; s < static_cast<int>(model_.blocks[b].segments.size()); ++s) parts.emplace_back(b, s);
    }
    return parts;
  }
  Content* window(int r, int unit, int partial) {
    const auto& buffers = ranks_[r].program.buffers;
    for (size_t b = 0; b < buffers.size(); ++b) {
      if (buffers[b].kind == BufferKind::kGradient && buffers[b].unit == unit && buffers[b].partial == partial) {
        return &ranks_[r].gradients[static_cast<int>(b)];
      }
    }
    return nullptr;
  }
  /// The tree over [begin, end) from the given subtrees.
  uint64_t finish_tree(int64_t begin, int64_t end, const std::map<std::pair<int64_t, int64_t>, uint64_t>& known) {
    const auto it = known.find({begin, end});
    if (it != known.end()) return it->second;
    if (end - begin == 1) {
      problem(fmt::format("nobody has lane {}", begin));
      return 0;
    }
    int64_t left = 1;
    while (left * 2 < end - begin) left *= 2;
    return add(finish_tree(begin, begin + left, known), finish_tree(begin + left, end, known));
  }

  void execute(int r, int q) {
    Rank& rank = ranks_[r];
    const Instruction& i = *front(r, q);
    switch (i.op) {
      case Op::kBackward:
        for (int b : i.writes) backward(rank, i, b);
        break;
      case Op::kFold:
        for (const Add& a : i.adds) fold(rank, i, a);
        break;
      case Op::kReduce:
        reduce(r, i);
        break;
      case Op::kGather:
        gather(r, i);
        break;
      case Op::kUpdate:
        update(r, i);
        break;
      default:
        break;
    }
    if (meets(i.op)) rank.met.insert({rank.step, i.id});
    if (i.signal >= 0) rank.events.insert(i.signal);
    ++rank.at[q];
    for (size_t k = 0; k < rank.at.size(); ++k) {
      if (front(r, static_cast<int>(k)) != nullptr) return;
    }
    if (++rank.step < steps_) rank.begin_step();
  }
  void backward(Rank& rank, const Instruction& i, int b) {
    const int unit = rank.program.buffers[b].unit >= 0 ? rank.program.buffers[b].unit : i.block;
    Content& content = rank.gradients[b];
    if (content.unit != unit) content = {unit, {}};
    const Part part{i.block, i.segment};
    content.value[part].assign(ranks_.size(), term(rank.step, i.lane, i.micro, part, unit));
  }
  void fold(Rank& rank, const Instruction& i, const Add& a) {
    Content &into = rank.gradients[a.into], &from = rank.gradients[a.from];
    if (into.unit != i.block || from.unit != i.block) return problem("a fold of another unit's gradient");
    for (const Part& part : parts_of(i.block)) {
      into.value[part].resize(ranks_.size());
      from.value[part].resize(ranks_.size());
      for (size_t s = 0; s < ranks_.size(); ++s) into.value[part][s] = add(into.value[part][s], from.value[part][s]);
    }
  }
  void reduce(int r, const Instruction& i) {
    for (int unit : plan_.buckets[i.bucket].units) {
      for (const Part& part : parts_of(unit)) {
        std::map<std::pair<int64_t, int64_t>, uint64_t> known;
        for (int s = 0; s < size(); ++s) {
          const auto ranges = subtrees(ranks_[s].program.lanes, plan_.lanes);
          for (size_t p = 0; p < ranges.size(); ++p) {
            Content* content = window(s, unit, static_cast<int>(p));
            if (content == nullptr || content->value[part].empty()) return problem("a partial is missing in a reduce");
            known[{ranges[p].begin, ranges[p].end}] = content->value[part][r];
          }
        }
        window(r, unit, 0)->value[part][r] = finish_tree(0, plan_.lanes, known);
      }
    }
  }
  void gather(int r, const Instruction& i) {
    if (windows_) return;
    for (int unit : plan_.buckets[i.bucket].units) {
      for (const Part& part : parts_of(unit)) {
        for (int s = 0; s < size(); ++s) window(r, unit, 0)->value[part][s] = window(s, unit, 0)->value[part][s];
      }
    }
  }
  void update(int r, const Instruction& i) {
    for (const Part& part : parts_of(i.block)) {
      const uint64_t expected = lanes_sum(ranks_[r].step, 0, plan_.lanes, part, i.block);
      for (int s = 0; s < size(); ++s) {
        Content* content = window(windows_ ? s : r, i.block, 0);
        if (content == nullptr || content->value[part].empty() || content->value[part][s] != expected) {
          return problem(fmt::format("rank {}: {} reads another sum than the job's", r, to_string(i)));
        }
      }
    }
    ++ranks_[r].updated[i.block];
  }

  const Plan plan_;
  const ModelShape& model_;
  const int micro_batches_;
  const bool windows_;
  std::mt19937_64 random_;
  int steps_ = 0;
  std::vector<Rank> ranks_;
  std::vector<std::string> problems_;
};

}  // namespace tutti::test
