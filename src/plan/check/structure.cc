// The first part of the proof: whatever is read as a place in some list later (buffers, events,
// blocks, segments, lanes, parcels, transfers) is checked here, so that later parts look things up
// without asking.
#include "plan/check/structure.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "plan/check/operands.h"
#include "plan/check/ordering.h"
#include "plan/check/ranks.h"
#include "plan/ir/tags.h"

namespace tutti {

namespace {

bool inside(int value, size_t size) { return value >= 0 && value < static_cast<int>(size); }

// What the instructions of an op are about.
bool is_of_segment(Op op) {
  return op == Op::kForward || op == Op::kBackward || op == Op::kExchange;
}
bool is_of_block(Op op) {
  return is_of_segment(op) || op == Op::kFold || op == Op::kUpdate || op == Op::kFetch ||
         op == Op::kEvict;
}
bool is_of_parcel(Op op) {
  return op == Op::kReduce || op == Op::kGather || op == Op::kNorm || op == Op::kAcquire ||
         op == Op::kRelease;
}

class Structure {
 public:
  Structure(const Plan& plan, const ModelShape& model) : plan_(plan), model_(model) {}

  std::vector<std::string> check() {
    // Places, homes and ownership come first: all the rest goes by them.
    faults_ = check_ranks(plan_, model_);
    if (!faults_.empty()) return std::move(faults_);

    // Groups are compared with lists of ranks that are made in ascending order.
    for (const auto& group : plan_.groups) {
      bool ascending = !group.empty();
      for (size_t k = 0; k < group.size(); ++k) {
        ascending &= inside(group[k], plan_.programs.size()) && (k == 0 || group[k - 1] < group[k]);
      }
      if (!ascending) faults_.push_back("a group is not a list of ranks, ascending");
    }

    // Every program by itself.
    for (size_t r = 0; r < plan_.programs.size(); ++r) {
      const Program& program = plan_.programs[r];
      if (program.rank != static_cast<int>(r))
        fault(r, "its program is that of rank {}", program.rank);
      if (program.queues.empty()) fault(r, "it has no queue");
      check_buffers(program);
      check_events(program);
      std::unordered_set<uint32_t> ids;
      each(program, [&](Place place, const Instruction& i) {
        if (!ids.insert(i.id).second) fault_at(place, "its id {} is not its own", i.id);
        if (!is_id_of(i.op, i.id)) fault_at(place, "its id {} is not of its kind", i.id);
        check_instruction(program, place, i);
      });
    }
    return std::move(faults_);
  }

 private:
  template <typename... Args>
  void fault(size_t rank, fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(
        fmt::format("rank {}: {}", rank, fmt::format(format, std::forward<Args>(args)...)));
  }
  template <typename... Args>
  void fault_at(Place place, fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(name_of(plan_, place) + ": " +
                      fmt::format(format, std::forward<Args>(args)...));
  }
  /// Notes `what` as a fault where it does not hold.
  bool want(Place place, bool holds, const char* what) {
    if (!holds) fault_at(place, "{}", what);
    return holds;
  }
  template <class F>
  static void each(const Program& program, F&& f) {
    for (int q = 0; q < static_cast<int>(program.queues.size()); ++q) {
      const auto& list = program.queues[q].instructions;
      for (int k = 0; k < static_cast<int>(list.size()); ++k) f(Place{program.rank, q, k}, list[k]);
    }
  }

  /// Buffers have room for the floats that they say they hold; windows do not overlap.
  void check_buffers(const Program& program) {
    std::vector<Range> windows;
    for (const Buffer& b : program.buffers) {
      if (b.bytes < 0 || b.unit >= static_cast<int>(model_.blocks.size()))
        fault(program.rank, "what is '{}'?", b.name);

      // A range of moments has all of the optimizer's slots.
      const int64_t floats =
          b.range.size() * (b.kind == BufferKind::kMoment ? plan_.optimizer_slots : 1);
      if (floats * static_cast<int64_t>(sizeof(float)) > b.bytes) {
        fault(program.rank, "'{}' has {} bytes for {} floats", b.name, b.bytes, floats);
      }
      if (b.lent && (b.kind != BufferKind::kData || b.window))
        fault(program.rank, "'{}' is lent by the loader, which lends data alone", b.name);
      if (b.window && b.bytes > 0) windows.push_back({b.window_offset, b.window_offset + b.bytes});
    }

    // Sorted by their begin, only neighbours can overlap.
    std::sort(windows.begin(), windows.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (size_t k = 0; k < windows.size(); ++k) {
      const bool apart = k == 0 || windows[k - 1].end <= windows[k].begin;
      if (!apart || windows[k].begin % kAlign != 0)
        fault(program.rank, "buffers of its window overlap or are not aligned");
    }
  }

  /// Every event is signalled exactly once in a step, so a wait for it ends and means one thing.
  void check_events(const Program& program) {
    std::vector<int> signalled(program.events, 0);
    each(program, [&](Place place, const Instruction& i) {
      if (i.signal < 0) return;
      if (!inside(i.signal, signalled.size()))
        return fault_at(place, "signals event {}, which is not there", i.signal);
      if (++signalled[i.signal] > 1) fault_at(place, "signals event {} again", i.signal);
    });
    each(program, [&](Place place, const Instruction& i) {
      for (int event : i.waits) {
        if (!inside(event, signalled.size()) || signalled[event] != 1) {
          fault_at(place, "waits for event {}, which nobody signals", event);
        }
      }
    });
  }

  /// What an instruction names is there, and what it must say for its op is said. Returns where the
  /// rest could not even be looked up.
  void check_instruction(const Program& program, Place place, const Instruction& i) {
    const Touched touched = touched_by(i);
    check_named_buffers(program, place, i, touched);
    if (!check_subject(place, i)) return;
    check_home(place, i);

    // Compute is queue 0, which runs on the caller's thread.
    if (i.op == Op::kForward || i.op == Op::kBackward) check_flow(program, place, i, touched);
    const bool compute =
        i.op == Op::kLoad || is_of_segment(i.op) || i.op == Op::kFold || i.op == Op::kUpdate;
    want(place, !compute || place.queue == 0, "stands on another queue than compute");
    check_extras(place, i);
  }

  /// All buffers and units that an instruction names exist, in whatever list it names them.
  void check_named_buffers(const Program& program, Place place, const Instruction& i,
                           const Touched& touched) {
    // The second tier and the loader's memory are only used by those who may.
    for (const auto* list : {&touched.reads, &touched.writes}) {
      for (int b : *list) {
        if (!want(place, inside(b, program.buffers.size()), "touches a buffer that is not there"))
          continue;
        want(place, !program.buffers[b].offloaded || i.op == Op::kFetch || i.op == Op::kEvict,
             "touches the second tier");
        want(place, !program.buffers[b].lent || i.op == Op::kLoad || list == &touched.reads,
             "writes the loader's memory");
      }
    }

    // Units and tensors of Forward and Backward are in lists of their own.
    for (const auto* list : {&i.flow.parameters, &i.flow.gradients}) {
      for (const UnitBuffer& u : *list) {
        want(place,
             inside(u.unit, model_.blocks.size()) && inside(u.buffer, program.buffers.size()),
             "names no unit's buffer");
      }
    }
    check_operands(plan_, model_, place, faults_);
    for (const auto* list : {&i.flow.in, &i.flow.out}) {
      for (int b : *list)
        want(place, inside(b, program.buffers.size()), "has no buffer for a tensor");
    }
  }

  /// What the op is about is there: a group, a parcel, a block, a segment. False where later checks
  /// could not look it up.
  bool check_subject(Place place, const Instruction& i) {
    want(place, i.group < static_cast<int>(plan_.groups.size()), "names no group");
    if (!want(place, is_of_parcel(i.op) == inside(i.parcel, plan_.parcels.size()),
              "names no parcel, or one that it does not move"))
      return false;
    if (is_of_block(i.op) && !want(place, inside(i.block, model_.blocks.size()), "names no block"))
      return false;
    return !is_of_segment(i.op) ||
           want(place, inside(i.segment, model_.blocks[i.block].segments.size()),
                "names no segment");
  }

  /// A segment runs at its block's home, on lanes of this data rank.
  void check_home(Place place, const Instruction& i) {
    if (is_of_segment(i.op)) {
      want(place, inside(i.lane, plan_.batch.lanes) && inside(i.micro, plan_.batch.micro_batches),
           "names no micro-batch");
      const Coordinates home = plan_.homes[i.block], here = plan_.places[place.rank].at;

      // An Exchange meets all tensor ranks of the stage, so only the stage must be right.
      const bool mine = i.op == Op::kExchange
                            ? home.pipeline == here.pipeline
                            : home.pipeline == here.pipeline && home.tensor == here.tensor;
      want(place, mine, "its block is not this rank's");
    }

    // Without training all data ranks run lane 0, each on a batch that it is handed.
    if (is_of_segment(i.op) || i.op == Op::kLoad) {
      const bool mine = !plan_.training || contains(plan_.places[place.rank].lanes, i.lane);
      want(place, mine, "its lane is another rank's");
    }
  }

  /// What only some ops have: additions, transfers, a partner, an output.
  void check_extras(Place place, const Instruction& i) {
    want(place, i.op == Op::kFold || i.adds.empty(), "adds without being a fold");
    if (i.op == Op::kReduce && want(place, inside(i.transfer, plan_.sums.size()), "names no sum"))
      want(place, i.round == plan_.sums[i.transfer].round, "is another round than its sum");
    want(place, i.op != Op::kGather || inside(i.transfer, plan_.copies.size()), "names no copies");
    want(place, i.op != Op::kVote || i.group < 0, "is for all ranks");

    // A message is one buffer for one other rank.
    const auto message = [&](Access access) {
      return i.operands.size() == 1 && i.operands[0].access == access;
    };
    want(place, i.op != Op::kSend || message(Access::kRead), "sends one buffer");
    want(place, i.op != Op::kRecv || message(Access::kWrite), "receives one buffer");
    want(place, (i.op != Op::kSend && i.op != Op::kRecv) || inside(i.peer, plan_.programs.size()),
         "has no peer");

    if (i.op == Op::kExchange) {
      want(place, i.exchange != Exchange::kNone, "does nothing");
      want(place, inside(i.output, model_.blocks[i.block].segments[i.segment].outputs.size()),
           "names no output");
    }
  }

  /// The flow of a Forward or Backward: as many tensors as the segment declares, room for each, and
  /// nothing that it writes is anything else that it uses.
  void check_flow(const Program& program, Place place, const Instruction& i, const Touched& own) {
    // Numbers of tensors come first: everything below goes by their places.
    const SegmentShape& shape = model_.blocks[i.block].segments[i.segment];
    if (!has_tensors(i, shape)) return fault_at(place, "has not the tensors of its segment");

    // Room for what is kept and for temporaries.
    const Flow& f = i.flow;
    const auto sized = [&](int b, int64_t bytes, const char* what) {
      const int64_t there = inside(b, program.buffers.size()) ? program.buffers[b].bytes : 0;
      if (there < bytes) fault_at(place, "has {} bytes for {}, it needs {}", there, what, bytes);
    };
    sized(f.saved, shape.saved_bytes, "what it saves");
    sized(f.work, shape.work_bytes, "its work");
    if (i.op == Op::kBackward && i.part != Part::kBoth)
      sized(f.deferred, shape.deferred_bytes, "what it defers");

    check_overwrites(program, place, i, own, shape);
    if (i.op == Op::kForward) check_forward(place, f, shape);
    check_written_once(program, place, i, shape);
  }

  /// Whether a flow has the numbers of tensors that its segment declares. Only a backward that makes
  /// the inputs' gradients has gradients, but a forward may already name theirs (check_forward).
  static bool has_tensors(const Instruction& i, const SegmentShape& shape) {
    const Flow& f = i.flow;
    const bool gradients = i.op == Op::kBackward && i.part != Part::kWeight;
    return f.in.size() == shape.inputs.size() && f.out.size() == shape.outputs.size() &&
           (f.grad_in.size() == (gradients ? shape.inputs.size() : 0) ||
            (i.op == Op::kForward && f.grad_in.size() == shape.inputs.size())) &&
           f.grad_out.size() == (gradients ? shape.outputs.size() : 0);
  }

  /// Nothing is written while it is read, with three exceptions. A gradient may take the memory of
  /// its own input alone, and only if the segment consumes it; a gradient that is passed on may be
  /// added to; and losses are added to.
  void check_overwrites(const Program& program, Place place, const Instruction& i,
                        const Touched& own, const SegmentShape& shape) {
    const Flow& f = i.flow;
    const auto consumed = [&](int b) {
      int times = 0, at = -1;
      for (size_t k = 0; k < f.in.size(); ++k)
        if (f.in[k] == b) ++times, at = static_cast<int>(k);
      return times == 1 && f.grad_in.size() == f.in.size() && f.grad_in[at] == b &&
             shape.inputs[at].consumed;
    };
    const auto passed = [&](int b) {
      for (size_t o = 0; o < f.grad_out.size(); ++o)
        if (const int from = shape.outputs[o].same_as;
            from >= 0 && f.grad_out[o] == b && f.grad_in[from] == b)
          return true;
      return false;
    };

    // A buffer that is not there has been found at fault already.
    for (int b : own.writes) {
      if (inside(b, program.buffers.size()) && contains(own.reads, b) && !consumed(b) &&
          !passed(b) && !contains(losses_of(i), b))
        fault_at(place, "writes '{}' while it reads it", program.buffers[b].name);
    }
  }

  /// In a forward only memory that is passed on is both input and output, and a gradient that is
  /// named here takes the memory of its input.
  void check_forward(Place place, const Flow& f, const SegmentShape& shape) {
    for (size_t o = 0; o < f.out.size(); ++o) {
      const int from = shape.outputs[o].same_as;
      if (f.out[o] >= 0 && from < 0 && contains(f.in, f.out[o]))
        fault_at(place, "writes its input");
    }
    for (size_t k = 0; k < f.grad_in.size(); ++k) {
      if (f.grad_in[k] != -1 && f.grad_in[k] != f.in[k])
        fault_at(place, "makes a gradient that takes no input's memory");
    }
  }

  /// Nothing is written twice: two outputs, gradients or temporaries never share memory.
  void check_written_once(const Program& program, Place place, const Instruction& i,
                          const SegmentShape& shape) {
    const Flow& f = i.flow;
    std::vector<int> written;
    const auto write = [&](int b) {
      if (!inside(b, program.buffers.size())) return;  // none, or one that has been found at fault
      if (contains(written, b)) fault_at(place, "writes '{}' twice", program.buffers[b].name);
      written.push_back(b);
    };

    // An output that is an input's memory is only passed on.
    if (i.op == Op::kForward) {
      for (size_t o = 0; o < f.out.size(); ++o) {
        if (shape.outputs[o].same_as < 0) write(f.out[o]);
      }
      write(f.saved);
    }
    if (i.part == Part::kInput) write(f.deferred);
    write(f.work);

    // Likewise a gradient that is passed on is not written, even where it is added to.
    for (int b : f.grad_in) {
      if (!contains(f.grad_out, b)) write(b);
    }
    for (const UnitBuffer& g : f.gradients) write(g.buffer);
    for (const Operand& operand : i.operands) write(operand.buffer);
  }

  static std::vector<int> losses_of(const Instruction& i) {
    std::vector<int> buffers;
    for (const Operand* loss : operands_of(i, OperandRole::kLoss)) buffers.push_back(loss->buffer);
    return buffers;
  }

  const Plan& plan_;
  const ModelShape& model_;
  std::vector<std::string> faults_;
};

}  // namespace

TouchedByAll touched_by_all(const Plan& plan) {
  TouchedByAll all;
  for (const Program& program : plan.programs) {
    auto& queues = all.emplace_back();
    for (const Queue& queue : program.queues) {
      auto& list = queues.emplace_back();
      list.reserve(queue.instructions.size());
      for (const Instruction& i : queue.instructions) list.push_back(touched_by(i));
    }
  }
  return all;
}

std::vector<std::string> check_structure(const Plan& plan, const ModelShape& model) {
  return Structure(plan, model).check();
}

}  // namespace tutti
