// Runs the programs of all ranks of a mesh, in a random interleaving, on hashes instead of numbers: adding is neither
// commutative nor associative, so two results are equal only if they are the same operations in the same order. Knows
// nothing of the checker.
//
//   memory   every buffer is cells of 256 bytes; reading a cell that holds something else changes all that follows
//   phases   Reduce: my part is ready; mine is added up; all have taken mine. Gather: ready; copied. Others that meet:
//            entered; done. Sends wait for their receives, or (buffered) not
//   steps    ranks may be a step apart, as in a real run
#pragma once

#include <fmt/format.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "plan/make/transfers.h"

namespace tutti::test {

class MeshRunner {
 public:
  MeshRunner(const Plan& plan, const ModelShape& model, const MeshOptions& options, uint64_t seed)
      : plan_(plan),
        model_(model),
        options_(options),
        transfers_(plan, model, options),
        random_(seed),
        buffered_(seed % 2 == 1) {
    for (const Program& program : plan.programs) {
      Rank& rank = ranks_.emplace_back();
      for (size_t b = 0; b < program.buffers.size(); ++b) {
        rank.memory.emplace_back(cells_of(program.buffers[b].bytes));
        for (uint64_t& cell : rank.memory.back()) cell = random_();
      }
      place_state(program, rank);
      begin_step(program.rank);
    }
  }

  /// What went wrong; empty: it ran to the end.
  std::string run(int steps) {
    steps_ = steps;
    for (;;) {
      std::vector<std::pair<int, int>> enabled;
      bool finished = true;
      for (int r = 0; r < size(); ++r) {
        if (ranks_[r].step >= steps) continue;
        finished = false;
        for (int q = 0; q < static_cast<int>(ranks_[r].at.size()); ++q) {
          if (can_go_on(r, q)) enabled.emplace_back(r, q);
        }
      }
      if (finished) return "";
      if (enabled.empty()) return "deadlock";
      // Some ranks and queues run far ahead of others for a while.
      if (random_() % 64 == 0) favourite_ = random_();
      std::sort(enabled.begin(), enabled.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
      const auto [r, q] = enabled[random_() % 8 == 0 ? random_() % enabled.size() : 0];
      go_on(r, q);
    }
  }

  /// The parameters and moments by unit and cell; `problem` names the first place where ranks differ.
  std::map<std::tuple<int, int, int64_t>, uint64_t> state(std::string& problem) const {
    std::map<std::tuple<int, int, int64_t>, uint64_t> all;
    const auto put = [&](int unit, int slot, int64_t cell, uint64_t value, const std::string& where) {
      const auto [it, fresh] = all.try_emplace({unit, slot, cell}, value);
      if (!fresh && it->second != value && problem.empty()) problem = where + " differs from another rank's";
    };
    for (int r = 0; r < size(); ++r) {
      const auto& buffers = plan_.programs[r].buffers;
      for (size_t b = 0; b < buffers.size(); ++b) {
        each_state_cell(r, buffers[b], [&](int slot, int64_t cell, int64_t place) {
          put(buffers[b].unit, slot, cell, ranks_[r].memory[b][place],
              fmt::format("'{}' of rank {}", buffers[b].name, r));
        });
      }
    }
    return all;
  }

 private:
  using Cells = std::vector<uint64_t>;
  struct Rank {
    int step = 0;
    std::vector<size_t> at;  // by queue
    std::vector<int> phase;
    std::set<int> events;
    std::vector<Cells> memory;
    std::map<uint32_t, std::vector<Cells>> sums;            // what a Reduce has added up, by level
    std::map<std::tuple<int, int, size_t>, Cells> further;  // (unit, level, source): further users' stacks
    uint64_t squares = 0, losses = 0;
  };

  // ---------------------------------------------------------------- hashes and memory

  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
    return x ^ (x >> 32);
  }
  static uint64_t add(uint64_t a, uint64_t b) { return mix(mix(a + 1) * 3 + b); }
  template <class... T>
  static uint64_t hash(T... values) {
    uint64_t h = 17;
    ((h = mix(h * 31 + static_cast<uint64_t>(values) + 1)), ...);
    return h;
  }
  static int64_t cells_of(int64_t bytes) { return (bytes + 255) / 256; }
  static int64_t first_cell(int64_t floats) { return floats / 64; }
  static int64_t last_cell(int64_t floats) { return (floats + 63) / 64; }
  static int64_t base(const Buffer& b) { return b.range.empty() ? 0 : b.range.begin; }
  int size() const { return static_cast<int>(ranks_.size()); }
  uint64_t key(const std::pair<int, int>& p) const { return hash(favourite_, p.first, p.second); }

  uint64_t tensor(int r, int b, int64_t bytes) const {
    uint64_t h = 3;
    for (int64_t c = 0; c < cells_of(bytes); ++c) h = add(h, ranks_[r].memory[b].at(c));
    return h;
  }
  void fill(int r, int b, int64_t bytes, uint64_t h) {
    for (int64_t c = 0; c < cells_of(bytes); ++c) ranks_[r].memory[b].at(c) = hash(h, c);
  }
  void spoil(int r, int b) {
    if (b < 0) return;
    for (uint64_t& cell : ranks_[r].memory[b]) cell = random_();
  }
  /// Floats [range) of a unit as buffer b has them, from float `lies` of gradient space on.
  uint64_t floats(int r, int b, Range range, int64_t lies) const {
    const int64_t at = first_cell(lies - base(plan_.programs[r].buffers[b]));
    uint64_t h = 5;
    for (int64_t c = 0; c < last_cell(range.size()); ++c) h = add(h, ranks_[r].memory[b].at(at + c));
    return h;
  }

  // ---------------------------------------------------------------- state

  Range updated_range(int r, int unit) const {
    if (options_.zero == 0) return {0, model_.blocks[unit].unit_size};
    return owned_slice(transfers_.places(), unit, options_.mesh.at(r).data);
  }

  /// f(slot, cell of the unit, place in the buffer) for what a step begins and ends with.
  template <class F>
  void each_state_cell(int r, const Buffer& b, F&& f) const {
    if (b.unit < 0) return;
    if (b.kind == BufferKind::kMoment) {
      const Range range = updated_range(r, b.unit);
      for (int64_t c = first_cell(range.begin); c < last_cell(range.end); ++c) f(1, c, c - first_cell(range.begin));
    }
    if (b.kind != BufferKind::kParameter) return;
    for (const auto& [range, lies] : transfers_.pieces_of(b, b.unit, r)) {
      const int64_t shift = first_cell(lies - base(b)) - first_cell(range.begin);
      for (int64_t c = first_cell(range.begin); c < last_cell(range.end); ++c) f(0, c, c + shift);
    }
  }
  void place_state(const Program& program, Rank& rank) const {
    for (size_t b = 0; b < program.buffers.size(); ++b) {
      const int unit = program.buffers[b].unit;
      each_state_cell(program.rank, program.buffers[b], [&](int slot, int64_t cell, int64_t place) {
        rank.memory[b].at(place) = hash(unit, slot, cell);
      });
    }
  }

  // ---------------------------------------------------------------- going through the programs

  void begin_step(int r) {
    Rank& rank = ranks_[r];
    rank.at.assign(plan_.programs[r].queues.size(), 0);
    rank.phase.assign(plan_.programs[r].queues.size(), 0);
    rank.events.clear();
  }
  const Instruction* front(int r, int q) const {
    const auto& list = plan_.programs[r].queues[q].instructions;
    return ranks_[r].at[q] < list.size() ? &list[ranks_[r].at[q]] : nullptr;
  }
  bool all_marked(const char* what, uint64_t number, int step, const std::vector<int>& ranks) const {
    for (int rank : ranks) {
      if (!marks_.contains({what, number, step, rank})) return false;
    }
    return true;
  }
  void mark(const char* what, uint64_t number, int step, int rank) { marks_.insert({what, number, step, rank}); }
  uint64_t copies_of(const Instruction& i) const {
    return static_cast<uint64_t>(i.block) * 4 + (copy_of(i).updated ? 1 : 0) + (is_gradient(i) ? 2 : 0);
  }
  bool is_gradient(const Instruction& i) const { return copy_of(i).name.find("gradients") != std::string::npos; }
  const CopyTransfer& copy_of(const Instruction& i) const {
    const auto it = copy_transfers_.find(i.id);
    return it != copy_transfers_.end() ? it->second : copy_transfers_.emplace(i.id, transfers_.copy(i)).first->second;
  }
  const SumTransfer& sum_of(const Instruction& i) const {
    const auto it = sum_transfers_.find(i.id);
    return it != sum_transfers_.end() ? it->second : sum_transfers_.emplace(i.id, transfers_.sum(i)).first->second;
  }
  std::vector<int> contributors(const SumTransfer& t) const {
    std::set<int> all;
    for (const SumSource& s : t.sources) {
      for (const auto& term : s.terms) all.insert(term.rank);
    }
    return {all.begin(), all.end()};
  }
  std::vector<int> owners(const SumTransfer& t) const {
    std::vector<int> all;
    for (size_t m = 0; m < t.ranks.size(); ++m) {
      if (!t.slices[m].empty()) all.push_back(t.ranks[m]);
    }
    return all;
  }

  bool can_go_on(int r, int q) const {
    const Instruction* i = front(r, q);
    if (i == nullptr) return false;
    const int phase = ranks_[r].phase[q], step = ranks_[r].step;
    if (phase == 0) {
      for (int e : i->waits) {
        if (!ranks_[r].events.contains(e)) return false;
      }
      return true;
    }
    switch (i->op) {
      case Op::kReduce:
        return phase == 1 ? all_marked("ready", i->id, step, contributors(sum_of(*i)))
                          : all_marked("taken", i->id, step, owners(sum_of(*i)));
      case Op::kGather: {
        std::vector<int> sources;
        for (const auto& copy : copy_of(*i).copies) {
          if (copy.to == r) sources.push_back(copy.from);
        }
        return all_marked("offered", copies_of(*i), step, sources);
      }
      case Op::kSend:
        return buffered_ || all_marked("entered", i->id, step, {i->peer});
      case Op::kRecv:
        return all_marked("entered", i->id, step, {i->peer});
      default:
        return all_marked("entered", i->id, step, transfers_.members(*i));
    }
  }

  void go_on(int r, int q) {
    Rank& rank = ranks_[r];
    const Instruction& i = *front(r, q);
    if (!act(r, i, rank.phase[q])) {
      ++rank.phase[q];
      return;
    }
    rank.phase[q] = 0;
    if (i.signal >= 0) rank.events.insert(i.signal);
    ++rank.at[q];
    for (size_t k = 0; k < rank.at.size(); ++k) {
      if (front(r, static_cast<int>(k)) != nullptr) return;
    }
    if (++rank.step < steps_) begin_step(r);
  }

  /// Whether the instruction is over.
  bool act(int r, const Instruction& i, int phase) {
    Rank& rank = ranks_[r];
    switch (i.op) {
      case Op::kLoad:
        for (size_t d = 0; d < i.writes.size(); ++d)
          fill(r, i.writes[d], model_.data_bytes[d], hash(d, rank.step, i.lane, i.micro));
        return true;
      case Op::kForward:
        forward(r, i);
        return true;
      case Op::kBackward:
        backward(r, i);
        return true;
      case Op::kFold:
        for (const Add& a : i.adds) fold(r, i, a);
        return true;
      case Op::kNorm:
        norm(r, i);
        return true;
      case Op::kUpdate:
        update(r, i);
        return true;
      case Op::kFetch:
      case Op::kEvict:
        move(r, i);
        return true;
      case Op::kReduce:
        return reduce(r, i, phase);
      case Op::kGather:
        if (phase == 0) {
          mark("offered", copies_of(i), rank.step, r);
          return false;
        }
        gather(r, i);
        return true;
      case Op::kVote:
        if (phase == 0) {
          mark("entered", i.id, rank.step, r);
          verdicts_[rank.step] += rank.squares + 3 * rank.losses;
          rank.squares = rank.losses = 0;
          return false;
        }
        fill(r, i.writes[0], 256, verdicts_[rank.step]);
        return true;
      case Op::kSend:
      case Op::kRecv:
        return letter(r, i, phase);
      case Op::kExchange:
        return exchange(r, i, phase);
      default:
        return true;
    }
  }

  // ---------------------------------------------------------------- instructions

  int64_t input_bytes(const Instruction& i, size_t k) const {
    const InputShape& in = model_.blocks[i.block].segments[i.segment].inputs[k];
    if (in.data) return model_.data_bytes[in.index];
    const BlockShape& block = model_.blocks[i.block];
    if (i.segment > 0) return block.segments[i.segment - 1].outputs[in.index].read_bytes;
    return model_.blocks[model_.block_at(block.layer - 1, block.column)].segments.back().outputs[in.index].read_bytes;
  }
  uint64_t inputs(int r, const Instruction& i) const {
    uint64_t h = hash(i.block, i.segment);
    for (size_t k = 0; k < i.flow.in.size(); ++k) h = add(h, tensor(r, i.flow.in[k], input_bytes(i, k)));
    return h;
  }
  uint64_t parameters(int r, const Instruction& i) const {
    uint64_t h = 9;
    for (const UnitBuffer& p : i.flow.parameters) {
      const BlockShape& unit = model_.blocks[p.unit];
      if (p.unit == i.block) h = add(h, floats(r, p.buffer, {0, unit.unit_size}, 0));
      const Buffer& b = plan_.programs[r].buffers[p.buffer];
      for (const Share& share : model_.blocks[i.block].shares) {
        if (share.unit != p.unit) continue;
        const ParameterShape& shape = unit.parameters[share.parameter];
        const bool copy = base(b) >= unit.unit_size;
        h = add(h, floats(r, p.buffer, {0, shape.size}, copy ? shape.extra_gradients[share.extra] : shape.offset));
      }
    }
    return h;
  }

  void forward(int r, const Instruction& i) {
    const SegmentShape& shape = model_.blocks[i.block].segments[i.segment];
    const uint64_t h = add(inputs(r, i), parameters(r, i));
    spoil(r, i.flow.work);
    for (size_t o = 0; o < shape.outputs.size(); ++o) {
      if (shape.outputs[o].same_as < 0) fill(r, i.flow.out[o], shape.outputs[o].bytes, hash(h, o));
    }
    if (i.flow.saved >= 0) fill(r, i.flow.saved, shape.saved_bytes, hash(h, 77));
    const BlockShape& block = model_.blocks[i.block];
    const bool last = block.layer + 1 == model_.layers() && &shape == &block.segments.back();
    if (last && !i.again && block.column == 0) ranks_[r].losses += hash(h, i.lane, i.micro);
  }

  void backward(int r, const Instruction& i) {
    const BlockShape& block = model_.blocks[i.block];
    const SegmentShape& shape = block.segments[i.segment];
    uint64_t known = inputs(r, i);
    for (size_t o = 0; o < shape.outputs.size(); ++o) {
      if (shape.outputs[o].exchange != Exchange::kScatter)
        known = add(known, tensor(r, i.flow.out[o], shape.outputs[o].bytes));
    }
    if (i.flow.saved >= 0) known = add(known, tensor(r, i.flow.saved, shape.saved_bytes));
    uint64_t left = 0;  // what the weight part knows of the gradients that came
    const bool defers = shape.deferred_bytes > 0;
    if (i.part != Part::kWeight) {
      uint64_t h = add(known, parameters(r, i));
      for (size_t o = 0; o < i.flow.grad_out.size(); ++o) {
        if (i.flow.grad_out[o] >= 0) h = add(h, tensor(r, i.flow.grad_out[o], gradient_bytes(i, o)));
      }
      for (size_t k = 0; k < i.flow.grad_in.size(); ++k) {
        bool passed = false;
        for (const OutputShape& out : shape.outputs) passed |= out.same_as == static_cast<int>(k);
        if (i.flow.grad_in[k] >= 0 && !passed) fill(r, i.flow.grad_in[k], shape.inputs[k].grad_bytes, hash(h, k));
      }
      left = defers ? hash(h, 55) : 0;
      if (defers && i.part == Part::kInput) fill(r, i.flow.deferred, shape.deferred_bytes, left);
    }
    if (defers) {
      uint64_t found = 3;
      for (int64_t c = 0; c < cells_of(shape.deferred_bytes); ++c)
        found = add(found, i.part == Part::kBoth ? hash(left, c) : ranks_[r].memory[i.flow.deferred].at(c));
      left = found;
    }
    spoil(r, i.flow.work);
    if (i.part != Part::kInput) write_gradients(r, i, add(known, left));
  }
  int64_t gradient_bytes(const Instruction& i, size_t o) const {
    const OutputShape& out = model_.blocks[i.block].segments[i.segment].outputs[o];
    return out.exchange == Exchange::kScatter ? out.read_bytes * model_.columns : out.bytes;
  }
  /// Of a block's floats each segment writes its own cells.
  void write_gradients(int r, const Instruction& i, uint64_t h) {
    const auto write = [&](int b, int unit, Range range) {
      const auto segments = static_cast<int64_t>(model_.blocks[i.block].segments.size());
      const int64_t at = first_cell(range.begin - base(plan_.programs[r].buffers[b]));
      for (int64_t c = 0; c < last_cell(range.size()); ++c) {
        if (c % segments == i.segment) ranks_[r].memory[b].at(at + c) = hash(h, unit, range.begin, c);
      }
    };
    for (const UnitBuffer& g : i.flow.gradients) {
      if (g.unit == i.block) write(g.buffer, g.unit, {0, model_.blocks[g.unit].unit_size});
      for (const Share& share : model_.blocks[i.block].shares) {
        if (share.unit != g.unit) continue;
        const ParameterShape& shape = model_.blocks[g.unit].parameters[share.parameter];
        const int64_t lies = shape.extra_gradients[share.extra];
        write(g.buffer, g.unit, {lies, lies + shape.size});
      }
    }
  }

  void fold(int r, const Instruction& i, const Add& a) {
    const Buffer& b = plan_.programs[r].buffers[a.into];
    const int64_t cells = last_cell(b.range.empty() ? model_.blocks[i.block].gradient_size : b.range.size());
    auto &into = ranks_[r].memory[a.into], &from = ranks_[r].memory[a.from];
    for (int64_t c = 0; c < cells; ++c) into.at(c) = add(into.at(c), from.at(c));
  }

  void norm(int r, const Instruction& i) {
    const Range slice = owned_slice(transfers_.places(), i.block, options_.mesh.at(r).data);
    const int64_t first = first_cell(base(plan_.programs[r].buffers[i.reads[0]]));
    for (int64_t c = first_cell(slice.begin); c < last_cell(slice.end); ++c)
      ranks_[r].squares += hash(i.block, c, ranks_[r].memory[i.reads[0]].at(c - first));
  }

  void update(int r, const Instruction& i) {
    const auto find = [&](BufferKind kind) {
      for (int b : i.reads) {
        if (plan_.programs[r].buffers[b].kind == kind) return b;
      }
      return -1;
    };
    const auto& buffers = plan_.programs[r].buffers;
    const int gradient = find(BufferKind::kGradient), parameter = find(BufferKind::kParameter),
              moment = find(BufferKind::kMoment), verdict = find(BufferKind::kWork);
    const Range range = updated_range(r, i.block);
    for (int64_t c = first_cell(range.begin); c < last_cell(range.end); ++c) {
      uint64_t& value = ranks_[r].memory[parameter].at(c - first_cell(base(buffers[parameter])));
      uint64_t& slot = ranks_[r].memory[moment].at(c - first_cell(range.begin));
      const uint64_t g = ranks_[r].memory[gradient].at(c - first_cell(base(buffers[gradient])));
      slot = hash(slot, g, ranks_[r].memory[verdict].at(0));
      value = hash(value, slot);
    }
  }

  void move(int r, const Instruction& i) {
    for (size_t k = 0; k < i.reads.size(); ++k) {
      auto &from = ranks_[r].memory[i.reads[k]], &to = ranks_[r].memory[i.writes[k]];
      for (size_t c = 0; c < std::min(from.size(), to.size()); ++c) to[c] = from[c];
    }
  }

  // ---------------------------------------------------------------- what goes between ranks

  uint64_t& window(int r, int64_t offset) {
    const auto& buffers = plan_.programs[r].buffers;
    for (size_t b = 0; b < buffers.size(); ++b) {
      const int64_t at = offset - buffers[b].window_offset;
      if (buffers[b].window && at >= 0 && at < buffers[b].bytes) return ranks_[r].memory[b].at(at / 256);
    }
    throw std::out_of_range("no buffer there");
  }

  bool reduce(int r, const Instruction& i, int phase) {
    Rank& rank = ranks_[r];
    const SumTransfer& t = sum_of(i);
    const size_t me = std::find(t.ranks.begin(), t.ranks.end(), r) - t.ranks.begin();
    const Range slice = t.slices[me];
    if (phase == 0) {
      mark("ready", i.id, rank.step, r);
      return false;
    }
    if (phase == 1) {
      if (!slice.empty()) take(r, i, t, slice);
      mark("taken", i.id, rank.step, r);
      return false;
    }
    for (int level = 0; !slice.empty() && level < t.levels; ++level) {
      const Cells& sum = rank.sums[i.id][level];
      const int b = level_buffer(r, i, level);
      const int64_t at = first_cell(slice.begin - base(plan_.programs[r].buffers[b]));
      for (size_t c = 0; c < sum.size(); ++c) rank.memory[b].at(at + c) = sum[c];
    }
    return true;
  }
  int level_buffer(int r, const Instruction& i, int level) const {
    for (int b : i.writes) {
      if (plan_.programs[r].buffers[b].level == level) return b;
    }
    return -1;
  }
  void take(int r, const Instruction& i, const SumTransfer& t, Range slice) {
    Rank& rank = ranks_[r];
    std::vector<Cells> levels;
    for (int level = 0; level < t.levels; ++level) {
      const int b = level_buffer(r, i, level);
      const int64_t at = first_cell(slice.begin - base(plan_.programs[r].buffers[b]));
      const auto begin = rank.memory[b].begin() + at;
      levels.emplace_back(begin, begin + last_cell(slice.size()));
    }
    for (size_t s = 0; s < t.sources.size(); ++s) {
      const Range to{std::max(slice.begin, t.sources[s].to.begin), std::min(slice.end, t.sources[s].to.end)};
      for (int64_t c = first_cell(to.begin); c < last_cell(to.end); ++c) {
        std::vector<uint64_t> stack;
        for (int level = 0; level < t.levels; ++level) {
          Cells& further = rank.further[{t.unit, level, s}];
          further.resize(last_cell(model_.blocks[t.unit].unit_size));
          stack.push_back(s == 0 ? levels[level].at(c - first_cell(slice.begin)) : further.at(c));
        }
        for (const LevelSum& sum : t.sums) {
          std::vector<uint64_t> terms;
          for (int term : sum.terms) {
            if (term < 0) {
              terms.push_back(stack.at(-1 - term));
            } else {
              const auto& from = t.sources[s].terms.at(term);
              terms.push_back(window(from.rank, from.offset + (c - first_cell(t.sources[s].to.begin)) * 256));
            }
          }
          for (const auto& [into, from] : sum.order) terms[into] = add(terms[into], terms[from]);
          stack[sum.level] = terms[0];
        }
        for (int level = 0; level < t.levels; ++level) {
          (s == 0 ? levels[level].at(c - first_cell(slice.begin)) : rank.further[{t.unit, level, s}].at(c)) =
              stack[level];
        }
        if (t.last() && s > 0) {
          uint64_t& total = levels[0].at(c - first_cell(slice.begin));
          total = add(total, stack[0]);
        }
      }
    }
    rank.sums[i.id] = std::move(levels);
  }

  void gather(int r, const Instruction& i) {
    std::vector<std::pair<uint64_t*, uint64_t>> writes;
    for (const auto& copy : copy_of(i).copies) {
      if (copy.to != r) continue;
      for (int64_t c = 0; c < cells_of(copy.bytes); ++c) {
        writes.emplace_back(&ranks_[r].memory[i.writes.at(copy.write)].at(copy.at / 256 + c),
                            window(copy.from, copy.offset + c * 256));
      }
    }
    for (const auto& [to, value] : writes) *to = value;
  }

  bool letter(int r, const Instruction& i, int phase) {
    Rank& rank = ranks_[r];
    if (phase == 0) {
      if (i.op == Op::kSend) letters_[{i.id, rank.step}] = rank.memory[i.reads[0]];
      mark("entered", i.id, rank.step, r);
      return false;
    }
    if (i.op == Op::kRecv) rank.memory[i.writes[0]] = letters_.at({i.id, rank.step});
    return true;
  }

  bool exchange(int r, const Instruction& i, int phase) {
    Rank& rank = ranks_[r];
    auto& brought = brought_[{i.id, rank.step}];
    if (phase == 0) {
      for (int b : i.flow.in) brought[r].push_back(rank.memory[b]);
      if (i.exchange == Exchange::kScatter) {
        for (int b : i.flow.in) spoil(r, b);
      }
      mark("entered", i.id, rank.step, r);
      return false;
    }
    std::vector<const Cells*> columns;
    int first = 0;  // my first column
    for (const auto& [member, parts] : brought) {
      if (member < r) first += static_cast<int>(parts.size());
      for (const Cells& part : parts) columns.push_back(&part);
    }
    const size_t count = columns.size();
    if (i.exchange == Exchange::kGather) {
      const size_t part = exchanged_cells(i) / count;
      for (size_t c = 0; c < count * part; ++c) rank.memory[i.flow.out[0]].at(c) = columns[c / part]->at(c % part);
      return true;
    }
    const size_t part = exchanged_cells(i) / count;
    for (size_t k = 0; k < i.flow.out.size(); ++k) {
      for (size_t c = 0; c < part; ++c)
        rank.memory[i.flow.out[k]].at(c) = tree(columns, 0, count, (static_cast<size_t>(first) + k) * part + c);
    }
    return true;
  }
  /// Cells of all columns' parts; the models of these tests have one size for all that columns exchange.
  size_t exchanged_cells(const Instruction& i) const {
    for (const OutputShape& out : model_.blocks[i.block].segments[i.segment].outputs) {
      if (out.exchange == Exchange::kGather) return cells_of(out.read_bytes);
      if (out.exchange == Exchange::kScatter) return cells_of(out.bytes);
    }
    return 0;
  }
  static uint64_t tree(const std::vector<const Cells*>& columns, size_t begin, size_t end, size_t cell) {
    if (end - begin == 1) return columns[begin]->at(cell);
    size_t left = 1;
    while (left * 2 < end - begin) left *= 2;
    return add(tree(columns, begin, begin + left, cell), tree(columns, begin + left, end, cell));
  }

  const Plan& plan_;
  const ModelShape& model_;
  const MeshOptions options_;
  const Transfers transfers_;
  std::mt19937_64 random_;
  const bool buffered_;
  uint64_t favourite_ = 0;
  int steps_ = 0;
  std::vector<Rank> ranks_;
  std::set<std::tuple<std::string, uint64_t, int, int>> marks_;  // (what, number, step, rank)
  std::map<int, uint64_t> verdicts_;                             // by step
  std::map<std::pair<uint32_t, int>, Cells> letters_;
  std::map<std::pair<uint32_t, int>, std::map<int, std::vector<Cells>>> brought_;
  mutable std::map<uint32_t, CopyTransfer> copy_transfers_;
  mutable std::map<uint32_t, SumTransfer> sum_transfers_;
};

}  // namespace tutti::test
