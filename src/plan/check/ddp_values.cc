// Since conflicting accesses are ordered (check.cc), one interleaving stands for all: the instructions run once, in the
// ordering's sequence, on symbols.
//
//   term    (lane, micro); expressions are numbered, equal ones share a number
//   part    what one segment writes of a unit's gradient: (writing block, segment). Users of shared parameters are
//   writers, too value   of a gradient buffer: the unit it is of and an expression per part
#include "plan/check/ddp_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "plan/check/expressions.h"

namespace tutti {

namespace {

enum class Stage { kUntouched, kAcquired, kLocal, kReduced, kGathered };

struct Gradient {
  int unit = -1;
  Stage stage = Stage::kUntouched;
  std::vector<int> parts;
  std::vector<bool> unread;  // by part: written or added to since it was last read
  void reset(int new_unit, Stage new_stage, size_t count) {
    unit = new_unit, stage = new_stage;
    parts.assign(count, kUndefined);
    unread.assign(count, false);
  }
  bool any_unread() const { return std::find(unread.begin(), unread.end(), true) != unread.end(); }
};

/// What an activation buffer holds: that of segment `at` of the model on (lane, micro).
struct Mark {
  int at = -1, lane = -1, micro = -1;
  bool operator==(const Mark&) const = default;
};

bool listed(const std::vector<int>& buffers, int b) {
  return std::find(buffers.begin(), buffers.end(), b) != buffers.end();
}

class Interpreter {
 public:
  Interpreter(const Plan& plan, const ModelShape& model, int micro_batches, const Ordering& ordering)
      : plan_(plan), model_(model), ordering_(ordering), parts_(model.blocks.size()) {
    for (size_t b = 0; b < model.blocks.size(); ++b) {
      first_segment_.push_back(segments_);
      segments_ += static_cast<int>(model.blocks[b].segments.size());
      for (size_t s = 0; s < model.blocks[b].segments.size(); ++s) {
        parts_[b].emplace_back(b, s);
        for (int owner : model.blocks[b].writes_units) parts_[owner].emplace_back(b, s);
      }
    }
    for (const Program& program : plan.programs) {
      gradients_.emplace_back(program.buffers.size());
      marks_.emplace_back(program.buffers.size());
      flow_.emplace_back();
    }
    expected_ = expressions_.job(0, plan.lanes, micro_batches);
  }

  std::vector<std::string> run() {
    for (const auto& places : ordering_.sequence()) {
      if (at(plan_, places[0]).op == Op::kReduce) {
        reduce(places);
      } else {
        for (const Place& place : places) step(place);
      }
    }
    check_ends();
    return std::move(faults_);
  }

 private:
  template <typename... Args>
  void fault(Place place, fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(name_of(plan_, place) + ": " + fmt::format(format, std::forward<Args>(args)...));
  }
  const Buffer& buffer(Place place, int b) const { return plan_.programs[place.rank].buffers[b]; }

  void step(Place place) {
    const Instruction& i = at(plan_, place);
    if (i.op == Op::kNorm || i.op == Op::kGather || i.op == Op::kVote) done_[{place.rank, i.op, i.bucket}] = place;
    switch (i.op) {
      case Op::kLoad:
        return load(place, i);
      case Op::kForward:
        return forward(place, i);
      case Op::kBackward:
        return backward(place, i);
      case Op::kFold:
        return fold(place, i);
      case Op::kAcquire:
        return acquire(place, i);
      case Op::kReduce:
        return;
      case Op::kNorm:
        return norm(place, i);
      case Op::kGather:
        return gather(place, i);
      case Op::kVote:
        return vote(place);
      case Op::kUpdate:
        return update(place, i);
      case Op::kSend:
      case Op::kRecv:
      case Op::kExchange:
      case Op::kFetch:
      case Op::kEvict:
        return fault(place, "is not of data parallelism");
    }
  }

  Mark& mark(Place place, int b) { return marks_[place.rank][b]; }
  void need(Place place, const Instruction& i, BufferKind kind, Mark wanted, const char* what) {
    for (int b : i.reads) {
      if (buffer(place, b).kind == kind && mark(place, b) == wanted) return;
    }
    fault(place, "does not read {} of lane {} micro {}", what, wanted.lane, wanted.micro);
  }
  void need_parameters(Place place, const Instruction& i) {
    std::vector<int> units = model_.blocks[i.block].writes_units;
    if (model_.blocks[i.block].unit_size > 0) units.push_back(i.block);
    for (int unit : units) need_buffer(place, i.reads, BufferKind::kParameter, unit, "reads");
  }
  void need_buffer(Place place, const std::vector<int>& list, BufferKind kind, int unit, const char* verb) {
    for (int b : list) {
      if (buffer(place, b).kind == kind && buffer(place, b).unit == unit) return;
    }
    fault(place, "nowhere {} the {} of unit {}", verb, kind_name(kind), unit);
  }
  void leave(Place place, const Instruction& i, BufferKind kind, Mark made) {
    int count = 0;
    for (int b : i.writes) {
      if (buffer(place, b).kind != kind) continue;
      mark(place, b) = made;
      ++count;
    }
    if (count == 0) fault(place, "writes no {} buffer", kind_name(kind));
  }

  void load(Place place, const Instruction& i) { leave(place, i, BufferKind::kData, {-1, i.lane, i.micro}); }

  void forward(Place place, const Instruction& i) {
    const int s = first_segment_[i.block] + i.segment;
    need(place, i, BufferKind::kData, {-1, i.lane, i.micro}, "the data");
    if (s > 0) need(place, i, BufferKind::kBorder, {s - 1, i.lane, i.micro}, "its input");
    need_parameters(place, i);
    leave(place, i, BufferKind::kBorder, {s, i.lane, i.micro});
    leave(place, i, BufferKind::kSaved, {s, i.lane, i.micro});
  }

  void backward(Place place, const Instruction& i) {
    const int s = first_segment_[i.block] + i.segment;
    need(place, i, BufferKind::kData, {-1, i.lane, i.micro}, "the data");
    if (s > 0) need(place, i, BufferKind::kBorder, {s - 1, i.lane, i.micro}, "its input");
    need(place, i, BufferKind::kBorder, {s, i.lane, i.micro}, "its output");
    need(place, i, BufferKind::kSaved, {s, i.lane, i.micro}, "what its forward saved");
    need_parameters(place, i);
    const Mark incoming{s + 1, i.lane, i.micro};
    if (s + 1 < segments_ && flow_[place.rank] != incoming) fault(place, "does not follow the next segment's backward");
    flow_[place.rank] = {s, i.lane, i.micro};

    std::vector<int> wanted = model_.blocks[i.block].writes_units, units;
    if (model_.blocks[i.block].gradient_size > 0) wanted.push_back(i.block);
    for (int b : i.writes) {
      const Buffer& target = buffer(place, b);
      if (target.kind != BufferKind::kGradient) {
        fault(place, "writes '{}', which is no gradient", target.name);
        continue;
      }
      const int unit = target.unit >= 0 ? target.unit : i.block;
      units.push_back(unit);
      write_term(place, b, unit, {i.block, i.segment}, expressions_.term(i.lane, i.micro));
    }
    std::sort(wanted.begin(), wanted.end());
    std::sort(units.begin(), units.end());
    if (wanted != units)
      fault(place, "writes gradients of units [{}], not of [{}]", fmt::join(units, " "), fmt::join(wanted, " "));
  }

  void write_term(Place place, int b, int unit, std::pair<int, int> writer, int term) {
    const auto part = std::find(parts_[unit].begin(), parts_[unit].end(), writer);
    if (part == parts_[unit].end()) return fault(place, "has no part in unit {}", unit);
    const Buffer& target = buffer(place, b);
    const int64_t bytes = model_.blocks[unit].gradient_size * static_cast<int64_t>(sizeof(float));
    if (target.bytes < bytes) fault(place, "'{}' has {} bytes, the gradient {}", target.name, target.bytes, bytes);
    Gradient& g = gradients_[place.rank][b];
    if (!may_write(place, b)) return;
    const size_t p = part - parts_[unit].begin();
    if (g.unit == unit ? g.unread[p] : g.any_unread())
      fault(place, "overwrites '{}', which nobody has read", target.name);
    if (g.unit != unit) g.reset(unit, Stage::kLocal, parts_[unit].size());
    g.stage = Stage::kLocal;
    g.parts[p] = term;
    g.unread[p] = true;
  }

  bool may_write(Place place, int b) {
    const Gradient& g = gradients_[place.rank][b];
    if (buffer(place, b).partial < 0 || g.stage == Stage::kAcquired || g.stage == Stage::kLocal) return true;
    fault(place, "writes '{}', which {}", buffer(place, b).name,
          g.stage == Stage::kUntouched ? "was not acquired" : "is reduced already");
    return false;
  }

  void fold(Place place, const Instruction& i) {
    if (i.adds.empty()) fault(place, "adds nothing");
    for (const Add& add : i.adds) {
      Gradient &into = gradients_[place.rank][add.into], &from = gradients_[place.rank][add.from];
      const bool whole = into.unit == i.block && from.unit == i.block;
      if (!whole) {
        fault(place, "adds '{}' to '{}', which do not both hold the unit", buffer(place, add.from).name,
              buffer(place, add.into).name);
        continue;
      }
      if (!may_write(place, add.into)) continue;
      bool defined = true;
      for (size_t p = 0; p < into.parts.size(); ++p) {
        into.parts[p] = expressions_.sum(into.parts[p], from.parts[p]);
        defined &= into.parts[p] != kUndefined;
        if (into.parts[p] == kUndefined) into.parts[p] = kFaulty;
      }
      if (!defined) fault(place, "adds what was not written");
      from.unread.assign(from.unread.size(), false);
      into.unread.assign(into.unread.size(), true);
    }
  }

  void acquire(Place place, const Instruction& i) {
    for (int b : i.writes) {
      const Buffer& target = buffer(place, b);
      if (target.kind != BufferKind::kGradient || target.partial < 0 || target.unit < 0) {
        fault(place, "acquires '{}', which is in no window", target.name);
        continue;
      }
      Gradient& g = gradients_[place.rank][b];
      if (g.stage != Stage::kUntouched) fault(place, "'{}' was in use before", target.name);
      g.reset(target.unit, Stage::kAcquired, parts_[target.unit].size());
    }
  }

  int window_buffer(int rank, int unit, int partial) const {
    const auto& buffers = plan_.programs[rank].buffers;
    const auto it = std::find_if(buffers.begin(), buffers.end(), [&](const Buffer& b) {
      return b.kind == BufferKind::kGradient && b.unit == unit && b.partial == partial;
    });
    return static_cast<int>(it - buffers.begin());  // check_structure has found it
  }

  /// The owner of each slice folds all ranks' partials in tree order; which slice is whose does not matter here.
  void reduce(const std::vector<Place>& places) {
    for (const Place& place : places) step(place);
    std::vector<Range> ranges;
    std::vector<std::pair<int, int>> held;  // (rank, partial)
    for (const Place& place : places) {
      const auto own = subtrees(plan_.programs[place.rank].lanes, plan_.lanes);
      for (size_t p = 0; p < own.size(); ++p) held.emplace_back(place.rank, static_cast<int>(p));
      ranges.insert(ranges.end(), own.begin(), own.end());
    }
    const std::vector<TreeSum> sums = tree_sums(ranges, plan_.lanes);
    const Instruction& first = at(plan_, places[0]);
    for (int unit : plan_.buckets[first.bucket].units) {
      std::vector<int> result(parts_[unit].size(), kFaulty);
      for (size_t part = 0; part < result.size(); ++part) {
        std::map<int64_t, int> value;  // by the first lane of a subtree
        for (size_t k = 0; k < held.size(); ++k) {
          const auto& parts = gradients_[held[k].first][window_buffer(held[k].first, unit, held[k].second)].parts;
          value[ranges[k].begin] = parts.empty() ? kUndefined : parts[part];
        }
        for (const TreeSum& sum : sums) {
          value[sum.left.begin] = expressions_.sum(value[sum.left.begin], value[sum.right.begin]);
        }
        result[part] = value[0];
      }
      for (const Place& place : places) finish_reduce(place, unit, result);
    }
  }

  void finish_reduce(Place place, int unit, const std::vector<int>& result) {
    const Instruction& i = at(plan_, place);
    const size_t partials = subtrees(plan_.programs[place.rank].lanes, plan_.lanes).size();
    for (size_t p = 0; p < partials; ++p) {
      const int b = window_buffer(place.rank, unit, static_cast<int>(p));
      if (!listed(i.reads, b)) {
        fault(place, "does not read '{}'", buffer(place, b).name);
      }
      Gradient& g = gradients_[place.rank][b];
      if (g.stage != Stage::kLocal) fault(place, "'{}' holds no gradient of this step", buffer(place, b).name);
      g.stage = Stage::kReduced;
      g.unread.assign(g.unread.size(), false);
      if (p == 0) g.parts = result;
      if (p == 0 && !listed(i.writes, b)) {
        fault(place, "does not write '{}'", buffer(place, b).name);
      }
    }
  }

  void norm(Place place, const Instruction& i) {
    for (int unit : plan_.buckets[i.bucket].units) {
      const int b = window_buffer(place.rank, unit, 0);
      const Stage stage = gradients_[place.rank][b].stage;
      if (!listed(i.reads, b) || (stage != Stage::kReduced && stage != Stage::kGathered)) {
        fault(place, "does not read the reduced gradient of unit {}", unit);
      }
    }
  }

  void gather(Place place, const Instruction& i) {
    for (int unit : plan_.buckets[i.bucket].units) {
      const int b = window_buffer(place.rank, unit, 0);
      Gradient& g = gradients_[place.rank][b];
      if (!listed(i.reads, b) || !listed(i.writes, b) || g.stage != Stage::kReduced) {
        fault(place, "does not gather the reduced gradient of unit {}", unit);
      }
      g.stage = Stage::kGathered;
    }
  }

  /// The commit: every norm is known and every slice is held when the vote begins.
  void vote(Place place) {
    for (size_t bucket = 0; bucket < plan_.buckets.size(); ++bucket) {
      for (Op op : {Op::kNorm, Op::kGather}) {
        const auto it = done_.find({place.rank, op, static_cast<int>(bucket)});
        if (it == done_.end() || !ordering_.before(it->second, place)) {
          fault(place, "does not follow {} bucket {}", op_name(op), bucket);
        }
      }
    }
  }

  void update(Place place, const Instruction& i) {
    const auto voted = done_.find({place.rank, Op::kVote, -1});
    if (voted == done_.end() || !ordering_.before(voted->second, place)) fault(place, "does not follow the vote");
    need_buffer(place, i.reads, BufferKind::kParameter, i.block, "reads");
    need_buffer(place, i.reads, BufferKind::kMoment, i.block, "reads");
    need_buffer(place, i.writes, BufferKind::kParameter, i.block, "writes");
    need_buffer(place, i.writes, BufferKind::kMoment, i.block, "writes");
    const bool in_bucket =
        i.bucket >= 0 && i.bucket < static_cast<int>(plan_.buckets.size()) &&
        std::count(plan_.buckets[i.bucket].units.begin(), plan_.buckets[i.bucket].units.end(), i.block);
    if (!in_bucket) return fault(place, "its unit is in another bucket");
    const int b = window_buffer(place.rank, i.block, 0);
    if (!listed(i.reads, b)) fault(place, "does not read the reduced gradient");
    const Gradient& g = gradients_[place.rank][b];
    if (g.stage != Stage::kGathered) return fault(place, "its gradient is not gathered");
    for (size_t p = 0; p < g.parts.size(); ++p) {
      if (g.parts[p] == expected_ || g.parts[p] == kFaulty) continue;
      return fault(place, "block {} segment {} gives {}, the job says {}", parts_[i.block][p].first,
                   parts_[i.block][p].second, expressions_.text(g.parts[p]), expressions_.text(expected_));
    }
  }

  void check_ends() {
    for (const Program& program : plan_.programs) {
      for (size_t b = 0; b < program.buffers.size(); ++b) {
        if (!gradients_[program.rank][b].any_unread()) continue;
        faults_.push_back(
            fmt::format("rank {}: nobody reads what '{}' ends with", program.rank, program.buffers[b].name));
      }
    }
  }

  const Plan& plan_;
  const ModelShape& model_;
  const Ordering& ordering_;
  Expressions expressions_;
  int expected_ = 0;
  int segments_ = 0;
  std::vector<int> first_segment_;                       // by block
  std::vector<std::vector<std::pair<int, int>>> parts_;  // by unit: the (block, segment) that write it
  std::vector<std::vector<Gradient>> gradients_;         // [rank][buffer]
  std::vector<std::vector<Mark>> marks_;                 // [rank][buffer]
  std::vector<Mark> flow_;                               // by rank: whose border gradient came last
  std::map<std::tuple<int, Op, int>, Place> done_;       // (rank, op, bucket) of the commit
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> check_values(const Plan& plan, const ModelShape& model, int micro_batches,
                                      const Ordering& ordering) {
  return Interpreter(plan, model, micro_batches, ordering).run();
}

}  // namespace tutti
