// How a rank of a mesh gets its program:
//
//   1. the schedule says in which order its stage works on chunks and micro-batches (cells)
//   2. cells become passes: one block forward, or back; ZeRO-3 gathers what passes need some uses ahead
//   3. passes become instructions, put on queues in an order that would be right on one queue; what must wait for what
//      on another queue follows from the buffers that both touch (MeshProgram)
//
// Numbers of instructions that meet are functions of what they are about, so that all ranks have the same.
#include "plan/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "plan/mesh_program.h"
#include "plan/schedule.h"

namespace tutti {

namespace {

constexpr int64_t kFloat = sizeof(float);

// Numbers of meetings, by kind; below them are those of one rank alone.
constexpr uint32_t kVoteId = 1u << 22, kReduceIds = kVoteId + 1, kGradientGatherIds = 1u << 24, kRefreshIds = 3u << 23,
                   kGatherIds = 1u << 28, kExchangeIds = 2u << 28, kSendIds = 3u << 28;
constexpr uint32_t kPerHome = 1u << 16;

enum class Phase : uint8_t { kForward, kBoth, kInput, kWeight };

/// A block's work on one micro-batch.
struct Pass {
  int chunk = 0, layer = 0, micro = 0;
  Phase phase = Phase::kForward;
  std::vector<int> gathers;  ///< ZeRO-3: what must be gathered, as numbers of uses
};

/// ZeRO-3: a unit that is whole on this rank for some passes.
struct Use {
  int unit = -1;
  size_t first = 0, last = 0;  ///< passes
};

/// Where the gradient of one micro-batch goes and what is added to what behind its backward; levels as in plan/ddp.cc.
struct Route {
  int level = 0;  ///< -1: scratch
  std::vector<std::pair<int, int>> folds;
  int round = 0;
  bool last = false;  ///< of the round
};

class RankMaker {
 public:
  RankMaker(const ModelShape& model, const MeshOptions& options, const MeshPlaces& places,
            const std::vector<std::vector<int>>& groups, int rank)
      : model_(model),
        options_(options),
        places_(places),
        groups_(groups),
        at_(options.mesh.at(rank)),
        columns_(places.columns[at_.tensor]),
        program_(rank, options.overlap, options.mesh.pipeline > 1, goes_back(options),
                 options.overlap && (options.offload || options.offload_parameters), shares_far()),
        sums_(options.sums()),
        rounds_(sum_rounds(sums_)),
        sequence_(options.forward_only ? std::vector<MicroBatch>{{0, 0}} : sequence_of(sums_, at_.data)) {
    shared_by_alias_ = has_aliases();
  }

  Program make() {
    make_routes();
    make_cells();
    make_passes();
    make_uses();
    losses_ = program_.add_buffer("losses", BufferKind::kWork, 256);
    squares_ = program_.add_buffer("squares", BufferKind::kWork, 256);
    shared_squares_ = program_.add_buffer("shared squares", BufferKind::kWork, 256);
    verdict_ = program_.add_buffer("verdict", BufferKind::kWork, 256);
    place_state();
    for (size_t p = 0; p < passes_.size(); ++p) run(p);
    if (!options_.forward_only) commit();
    return program_.finish();
  }

 private:
  // ---------------------------------------------------------------- what there is to do

  static bool goes_back(const MeshOptions& options) {
    return options.mesh.pipeline > 1 && schedule_of(options) == "zbv";
  }

  bool has_aliases() const {
    for (const BlockShape& block : model_.blocks)
      for (const SegmentShape& segment : block.segments)
        for (const OutputShape& out : segment.outputs)
          if (out.same_as >= 0) return true;
    return false;
  }

  bool kept() const { return !(options_.zero >= 2 && passes_through(sums_)); }
  int reduce_shards() const { return reduce_shards_of(options_); }
  bool sliced() const { return options_.mesh.shards > 1; }
  bool gathers() const { return options_.zero == 3 && sliced(); }
  /// Whether passes find parameters in slots that are filled ahead of them, by gathers or from the second tier.
  bool brought() const { return gathers() || options_.offload_parameters; }
  /// My slice of a unit's sum.
  Range slice(int unit) const { return places_.slices[unit][at_.data % reduce_shards()]; }
  bool is_home(int unit) const {
    const Coordinates home = places_.home(model_, unit);
    return home.pipeline == at_.pipeline && home.tensor == at_.tensor;
  }
  bool mine(int layer) const { return places_.stage[places_.chunk_of_layer[layer]] == at_.pipeline; }
  std::vector<int> my_units() const {
    std::vector<int> units;
    for (int layer = 0; layer < model_.layers(); ++layer)
      for (int64_t c = columns_.begin; mine(layer) && c < columns_.end; ++c)
        if (const int unit = model_.block_at(layer, static_cast<int>(c)); model_.blocks[unit].gradient_size > 0)
          units.push_back(unit);
    return units;
  }

  void make_routes() {
    if (options_.forward_only) return routes_.push_back({});
    int round = 0;
    for (const auto& part : rounds_of(sums_, at_.data)) {
      int held = 0;
      for (size_t i = 0; i < part.size();) {
        size_t end = i;
        while (end < part.size() && part[end].lane == part[i].lane) ++end;
        const size_t sums =
            sums_.owner
                ? 0
                : sums_after_lane(part[i].lane, lanes_of(at_.data, sums_.ranks, sums_.batch.lanes), sums_.batch.lanes)
                      .size();
        const bool away = end - i == 1 && sums > 0;
        for (size_t m = i; m < end; ++m) {
          Route route;
          route.round = round;
          route.level = m > i || away ? -1 : held;
          route.last = m + 1 == part.size();
          if (m > i) route.folds.emplace_back(held, -1);
          for (size_t k = 0; m + 1 == end && k < sums; ++k) {
            const int from = held - static_cast<int>(k);
            route.folds.emplace_back(from - 1, k == 0 && away ? -1 : from);
          }
          routes_.push_back(std::move(route));
        }
        held += 1 - static_cast<int>(sums);
        i = end;
      }
      partials_ = std::max(partials_, held);
      ++round;
    }
  }

  void make_cells() {
    const int stages = options_.mesh.pipeline;
    const std::string name = schedule_of(options_);
    if (options_.forward_only) {
      for (size_t chunk = 0; chunk < places_.chunks.size(); ++chunk)
        if (places_.stage[chunk] == at_.pipeline) cells_.push_back({CellKind::kForward, static_cast<int>(chunk), 0});
    } else {
      cells_ = make_schedule(name, stages, chunks_of(name, options_.chunks),
                             static_cast<int>(sequence_.size()))[at_.pipeline];
    }
    // Places of micro-batches in flight: from a chunk's forward to the end of its backward.
    const size_t chunks = places_.chunks.size();
    std::vector<std::vector<bool>> used(chunks);
    slot_.assign(chunks, std::vector<int>(sequence_.size(), 0));
    std::vector<std::vector<bool>> pending(chunks);
    again_slot_ = slot_;
    std::vector<bool> data_used;
    data_slot_.assign(sequence_.size(), -1);
    std::vector<int> data_users(sequence_.size(), 0);
    const auto take = [](std::vector<bool>& places) {
      size_t slot = 0;
      while (slot < places.size() && places[slot]) ++slot;
      if (slot == places.size()) places.push_back(true);
      places[slot] = true;
      return static_cast<int>(slot);
    };
    const auto is_end = [&](const Cell& c) { return c.kind == CellKind::kBackward || c.kind == CellKind::kWeight; };
    for (const Cell& cell : cells_)
      if (cell.kind == CellKind::kForward && reads_data(cell.chunk)) ++data_users[cell.micro];
    for (const Cell& cell : cells_) {
      if (cell.kind == CellKind::kForward) {
        slot_[cell.chunk][cell.micro] = take(used[cell.chunk]);
        if (reads_data(cell.chunk) && data_slot_[cell.micro] < 0) data_slot_[cell.micro] = take(data_used);
      } else if (cell.kind == CellKind::kInput) {
        again_slot_[cell.chunk][cell.micro] = take(pending[cell.chunk]);
      } else if (is_end(cell)) {
        if (cell.kind == CellKind::kWeight) pending[cell.chunk][again_slot_[cell.chunk][cell.micro]] = false;
        used[cell.chunk][slot_[cell.chunk][cell.micro]] = false;
        if (reads_data(cell.chunk) && --data_users[cell.micro] == 0) data_used[data_slot_[cell.micro]] = false;
      }
    }
  }

  bool reads_data(int chunk) const {
    for (int64_t layer = places_.chunks[chunk].begin; layer < places_.chunks[chunk].end; ++layer)
      for (const SegmentShape& segment : model_.blocks[model_.block_at(static_cast<int>(layer), 0)].segments)
        for (const InputShape& in : segment.inputs)
          if (in.data) return true;
    return false;
  }

  void make_passes() {
    for (const Cell& cell : cells_) {
      const Range layers = places_.chunks[cell.chunk];
      const Phase phase = cell.kind == CellKind::kForward    ? Phase::kForward
                          : cell.kind == CellKind::kBackward ? Phase::kBoth
                          : cell.kind == CellKind::kInput    ? Phase::kInput
                                                             : Phase::kWeight;
      for (int64_t i = 0; i < layers.size(); ++i) {
        const int64_t layer = phase == Phase::kForward ? layers.begin + i : layers.end - 1 - i;
        passes_.push_back({cell.chunk, static_cast<int>(layer), cell.micro, phase, {}});
      }
    }
  }

  /// The units whose values a pass reads: its blocks' own and those whose parameters they share, where they live here.
  std::vector<int> units_of(const Pass& pass) const {
    std::set<int> units;
    if (pass.phase == Phase::kWeight) return {};
    for (int64_t c = columns_.begin; c < columns_.end; ++c) {
      const int block = model_.block_at(pass.layer, static_cast<int>(c));
      if (model_.blocks[block].unit_size > 0) units.insert(block);
      for (const Share& share : model_.blocks[block].shares)
        if (is_home(share.unit)) units.insert(share.unit);
    }
    return {units.begin(), units.end()};
  }

  void make_uses() {
    if (!brought()) return;
    size_t widest = 1;
    for (const Pass& pass : passes_) widest = std::max(widest, units_of(pass).size());
    gathered_slots_ = static_cast<size_t>(options_.depth) + widest;
    for (size_t p = 0; p < passes_.size(); ++p) {
      const std::vector<int> units = units_of(passes_[p]);
      // What is still there may be used again, unless what this pass has gathered anew takes its slot.
      std::vector<size_t> found;
      for (size_t fresh = 0;; ++fresh) {
        found.clear();
        for (int unit : units) found.push_back(still_gathered(unit, fresh));
        if (static_cast<size_t>(std::count(found.begin(), found.end(), kNone)) <= fresh) break;
      }
      for (size_t k = 0; k < units.size(); ++k) {
        if (found[k] == kNone) {
          found[k] = uses_.size();
          uses_.push_back({units[k], p, p});
        }
        uses_[found[k]].last = p;
        passes_[p].gathers.push_back(static_cast<int>(found[k]));
      }
    }
  }

  static constexpr size_t kNone = SIZE_MAX;
  /// The use of a unit whose slot will not have been taken after `fresh` further ones.
  size_t still_gathered(int unit, size_t fresh) const {
    const size_t end = uses_.size() + fresh, oldest = end > gathered_slots_ ? end - gathered_slots_ : 0;
    for (size_t u = uses_.size(); u-- > oldest;)
      if (uses_[u].unit == unit) return u;
    return kNone;
  }

  // ---------------------------------------------------------------- where things lie

  static int64_t unit_bytes(const BlockShape& block) { return align_up(block.unit_size, kAlign) * kFloat; }

  void place_state() {
    for (int unit : my_units()) {
      const BlockShape& block = model_.blocks[unit];
      const Range held = sliced() ? places_.slices[unit][options_.mesh.shard(at_.data)] : Range{0, block.unit_size};
      const bool read = sliced() || has_remote_users(unit);
      Buffer parameter{fmt::format("parameter {}", unit), BufferKind::kParameter, unit_bytes(block), unit, -1, -1};
      parameter.window = read;
      if (gathers()) {
        parameter.range = held;
        parameter.bytes = held.size() * kFloat;
      }
      parameter.offloaded = options_.offload_parameters;
      parameter_[unit] = program_.add_buffer(parameter);
      if (options_.forward_only) continue;
      Buffer moment{fmt::format("moments {}", unit),
                    BufferKind::kMoment,
                    align_up(held.size(), kAlign) * kFloat * options_.optimizer_slots,
                    unit,
                    -1,
                    -1};
      if (sliced()) moment.range = held;
      moment.offloaded = options_.offload;
      moment_[unit] = program_.add_buffer(moment);
    }
    for (const auto& [block, owner] : remote_shares()) {
      Buffer copy{fmt::format("copy of {} for {}", owner, block), BufferKind::kParameter, 0, owner, -1, -1};
      copy.range = extras_of(block, owner);
      copy.bytes = copy.range.size() * kFloat;
      copy_[{block, owner}] = program_.add_buffer(copy);
    }
    int64_t widest = 0;
    for (const Use& use : uses_) widest = std::max(widest, unit_bytes(model_.blocks[use.unit]));
    for (size_t s = 0; s < gathered_slots_ && !uses_.empty(); ++s)
      gathered_.push_back(program_.add_buffer(fmt::format("gathered {}", s), BufferKind::kParameter, widest));
    int64_t work = 0;
    for (const auto& block : model_.blocks)
      for (const auto& segment : block.segments) work = std::max(work, segment.work_bytes);
    if (work > 0) work_ = program_.add_buffer("work", BufferKind::kWork, work);
  }

  /// Whether a block of another layer on other ranks uses parameters of the unit.
  bool shared_far(int unit) const {
    for (size_t b = 0; b < model_.blocks.size(); ++b)
      for (const Share& share : model_.blocks[b].shares)
        if (share.unit == unit && model_.blocks[b].layer != model_.blocks[unit].layer &&
            places_.home(model_, static_cast<int>(b)) != places_.home(model_, unit))
          return true;
    return false;
  }
  bool shares_far() const {
    for (int unit : my_units())
      if (shared_far(unit)) return true;
    for (const auto& [block, owner] : remote_shares())
      if (shared_far(owner)) return true;
    return false;
  }

  bool has_remote_users(int unit) const {
    const Coordinates home = places_.home(model_, unit);
    for (size_t b = 0; b < model_.blocks.size(); ++b)
      for (const Share& share : model_.blocks[b].shares)
        if (share.unit == unit && !(places_.home(model_, static_cast<int>(b)) == home)) return true;
    return false;
  }

  /// (block, owner) of shared parameters whose gradients lie apart from the owner's own.
  std::vector<std::pair<int, int>> shares_apart() const {
    std::set<std::pair<int, int>> all;
    for (int layer = 0; layer < model_.layers(); ++layer)
      for (int64_t c = columns_.begin; mine(layer) && c < columns_.end; ++c) {
        const int block = model_.block_at(layer, static_cast<int>(c));
        for (const Share& share : model_.blocks[block].shares)
          if (!together(block, share.unit)) all.insert({block, share.unit});
      }
    return {all.begin(), all.end()};
  }
  /// Those of them whose owners live on other ranks.
  std::vector<std::pair<int, int>> remote_shares() const {
    std::vector<std::pair<int, int>> all = shares_apart();
    std::erase_if(all, [&](const auto& share) { return is_home(share.second); });
    return all;
  }

  /// Where a block's gradients of an owner's parameters lie among the owner's: they follow one another.
  Range extras_of(int block, int owner) const {
    Range range{INT64_MAX, 0};
    for (const Share& share : model_.blocks[block].shares) {
      if (share.unit != owner) continue;
      const ParameterShape& p = model_.blocks[owner].parameters[share.parameter];
      const int64_t begin = p.extra_gradients[share.extra];
      range.begin = std::min(range.begin, begin);
      range.end = std::max(range.end, align_up(begin + p.size, kAlign));
    }
    return range;
  }

  /// A buffer by what it is for; made when first asked for, then grown to the largest that is asked for.
  template <typename... Args>
  int buffer(BufferKind kind, int64_t bytes, fmt::format_string<Args...> format, Args&&... args) {
    return program_.named(fmt::format(format, std::forward<Args>(args)...), kind, bytes);
  }

  bool recomputed(int layer, const SegmentShape& segment) const {
    if (options_.recompute == Recompute::kNone || layer == 0 || layer + 1 == model_.layers()) return false;
    return options_.recompute == Recompute::kFull || segment.attention;
  }
  bool recomputed_whole(int layer) const {
    return options_.recompute == Recompute::kFull && layer > 0 && layer + 1 < model_.layers();
  }

  /// Names what is computed again. Where backward runs in two parts, it stays until the second of them.
  std::string again_place(const Pass& pass, bool again) const {
    if (!again || !splits_backward(schedule_of(options_))) return "";
    return fmt::format(" layer {} slot {}", pass.layer, again_slot_[pass.chunk][pass.micro]);
  }

  int saved(const Pass& pass, int column, int segment, bool again) {
    const int block = model_.block_at(pass.layer, column);
    const SegmentShape& shape = model_.blocks[block].segments[segment];
    if (shape.saved_bytes == 0) return -1;
    if (recomputed(pass.layer, shape))
      return buffer(BufferKind::kSaved, shape.saved_bytes, "saved again {}.{}{}", segment, column,
                    again_place(pass, again));
    return buffer(BufferKind::kSaved, shape.saved_bytes, "saved {}.{} slot {}", block, segment, slot(pass));
  }

  int slot(const Pass& pass) const { return slot_[pass.chunk][pass.micro]; }

  /// What a column's segment writes for one of its outputs.
  int written(const Pass& pass, int column, int segment, int output, bool again) {
    const int block = model_.block_at(pass.layer, column);
    const BlockShape& shape = model_.blocks[block];
    const OutputShape& out = shape.segments[segment].outputs[output];
    if (out.same_as >= 0) return read(pass, column, segment, out.same_as, again);
    // Partial sums are gone once they are added up.
    if (out.exchange == Exchange::kScatter)
      return buffer(BufferKind::kWork, out.bytes, "partial sum {}.{} column {}", segment, output, column);
    const bool last = segment + 1 == static_cast<int>(shape.segments.size());
    if (transient(pass, last, again))
      return buffer(BufferKind::kBorder, out.bytes, "border again {}.{} column {}{}", segment, output, column,
                    again_place(pass, again));
    return buffer(BufferKind::kBorder, out.bytes, "border {}.{}.{} slot {}", block, segment, output, slot(pass));
  }

  /// Borders inside a block that is computed again are not kept; in evaluation none is, and layers take turns.
  bool transient(const Pass& pass, bool last, bool again) const {
    return recomputed_whole(pass.layer) && (!last || again);
  }

  /// What the next segment of the column reads as that output.
  int after_exchange(const Pass& pass, int column, int segment, int output, bool again) {
    const int block = model_.block_at(pass.layer, column);
    const BlockShape& shape = model_.blocks[block];
    const OutputShape& out = shape.segments[segment].outputs[output];
    if (out.exchange == Exchange::kNone) return written(pass, column, segment, output, again);
    const bool last = segment + 1 == static_cast<int>(shape.segments.size());
    const bool gone = transient(pass, last, again);
    if (out.exchange == Exchange::kGather) {
      if (gone)
        return buffer(BufferKind::kBorder, out.read_bytes, "whole again {}.{}{}", segment, output,
                      again_place(pass, again));
      return buffer(BufferKind::kBorder, out.read_bytes, "whole {}.{}.{} slot {}", pass.layer, segment, output,
                    slot(pass));
    }
    if (gone)
      return buffer(BufferKind::kBorder, out.read_bytes, "part again {}.{} column {}{}", segment, output, column,
                    again_place(pass, again));
    return buffer(BufferKind::kBorder, out.read_bytes, "part {}.{}.{} slot {}", block, segment, output, slot(pass));
  }

  Pass layer_before(const Pass& pass) const {
    Pass before = pass;
    before.layer = pass.layer - 1;
    before.chunk = places_.chunk_of_layer[before.layer];
    return before;
  }
  bool same_rank(int chunk) const { return places_.stage[chunk] == at_.pipeline; }

  int last_segment(int layer) const {
    return static_cast<int>(model_.blocks[model_.block_at(layer, 0)].segments.size()) - 1;
  }

  /// Where a segment finds one of its inputs.
  int read(const Pass& pass, int column, int segment, int input, bool again) {
    const InputShape& in = model_.blocks[model_.block_at(pass.layer, column)].segments[segment].inputs[input];
    if (in.data) return data(pass.micro, in.index);
    if (segment > 0) return after_exchange(pass, column, segment - 1, in.index, again);
    const Pass before = layer_before(pass);
    if (same_rank(before.chunk)) return after_exchange(before, column, last_segment(before.layer), in.index, false);
    return received(pass, column, in.index);
  }

  /// What comes from the stage before: its last segment's outputs.
  int received(const Pass& pass, int column, int output) {
    const Pass before = layer_before(pass);
    const OutputShape& out =
        model_.blocks[model_.block_at(before.layer, column)].segments[last_segment(before.layer)].outputs[output];
    return buffer(BufferKind::kBorder, out.read_bytes, "received {}.{} column {} slot {}", pass.chunk, output, column,
                  slot(pass));
  }

  int data(int micro, int index) {
    return buffer(BufferKind::kData, model_.data_bytes[index], "data {} slot {}", index, data_slot_[micro]);
  }

  /// The gradient that a segment's backward writes for one of its inputs.
  int grad_in(const Pass& pass, int column, int segment, int input) {
    const int block = model_.block_at(pass.layer, column);
    const SegmentShape& shape = model_.blocks[block].segments[segment];
    if (!shape.inputs[input].wanted) return -1;
    for (size_t o = 0; o < shape.outputs.size(); ++o)
      if (shape.outputs[o].same_as == input) return grad_out(pass, column, segment, static_cast<int>(o));
    const int64_t bytes = shape.inputs[input].grad_bytes;
    const bool first = segment == 0 && pass.layer == places_.chunks[pass.chunk].begin;
    if (first)
      return buffer(BufferKind::kBorder, bytes, "gradient out {}.{} column {} slot {}", pass.chunk, input, column,
                    slot(pass));
    if (model_.columns > 1 || shared_by_alias_)
      return buffer(BufferKind::kBorder, bytes, "gradient {}.{} column {} turn {}", segment, input, column,
                    pass.layer % 2);
    return buffer(BufferKind::kBorder, bytes, "gradient {} turn {}", input, turn(pass.layer, segment));
  }

  int turn(int layer, int segment) const {
    int before = segment;
    for (int l = 0; l < layer; ++l) before += last_segment(l) + 1;
    return before % 2;
  }

  /// The consumer of a segment's output in its column, if it is on this rank: (pass of it, its segment).
  struct Consumer {
    bool here = false, exists = false;
    Pass pass;
    int segment = 0, input = -1;
  };
  Consumer consumer(const Pass& pass, int segment, int output) const {
    Consumer c;
    c.pass = pass;
    c.segment = segment + 1;
    if (segment == last_segment(pass.layer)) {
      if (pass.layer + 1 == model_.layers()) return c;
      c.pass.layer = pass.layer + 1;
      c.pass.chunk = places_.chunk_of_layer[c.pass.layer];
      c.segment = 0;
    }
    c.here = same_rank(c.pass.chunk);
    const auto& inputs = model_.blocks[model_.block_at(c.pass.layer, 0)].segments[c.segment].inputs;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (!inputs[i].data && inputs[i].index == output && inputs[i].wanted) c.input = static_cast<int>(i);
    c.exists = c.input >= 0;
    return c;
  }

  /// The gradient of one of a segment's outputs as its backward reads it; -1: none comes.
  int grad_out(const Pass& pass, int column, int segment, int output) {
    const OutputShape& out = model_.blocks[model_.block_at(pass.layer, column)].segments[segment].outputs[output];
    const Consumer next = consumer(pass, segment, output);
    if (!next.exists) return -1;
    if (!next.here)
      return buffer(BufferKind::kBorder, out.read_bytes, "gradient in {}.{} column {} slot {}", pass.chunk, output,
                    column, slot(pass));
    if (out.exchange == Exchange::kNone) return grad_in(next.pass, column, next.segment, next.input);
    // What the exchange of the gradient leaves: parts of a sum, or all columns' parts.
    if (out.exchange == Exchange::kGather)
      return buffer(BufferKind::kBorder, out.bytes, "gradient part {}.{} column {} turn {}", segment, output, column,
                    pass.layer % 2);
    const int64_t whole = out.read_bytes * model_.columns;
    return buffer(BufferKind::kBorder, whole, "gradient whole {}.{} turn {}", segment, output, pass.layer % 2);
  }

  int parameters(int unit, const Pass& pass) {
    if (!brought()) return parameter_.at(unit);
    for (int use : pass.gathers)
      if (uses_[use].unit == unit) return gathered_[use % gathered_slots_];
    TUTTI_CHECK(false, "unit {} is not gathered", unit);
  }

  /// The gradient buffer of a unit at a level of the rank's fold stack, or scratch.
  int gradient(int unit, int level, int round) {
    const BlockShape& block = model_.blocks[unit];
    const bool apart = has_writers_apart(unit);
    const int64_t bytes = align_up(block.gradient_size, kAlign) * kFloat;
    const bool foreign = has_local_writers(unit) || apart;
    if (!kept() && !foreign) {
      const int turns = options_.overlap ? 2 : 1;
      const auto [it, fresh] = passing_.try_emplace({unit, round}, 0);
      if (fresh) it->second = passed_[block.column]++ % turns;
      return window(
          program_.named(fmt::format("passing {} column {}", it->second, block.column), BufferKind::kGradient, bytes),
          -1, 0);
    }
    // The columns of a layer go back side by side, layers one after the other.
    if (level < 0 && !foreign)
      return program_.named(fmt::format("scratch of column {}", block.column), BufferKind::kGradient, bytes);
    const std::string name = level < 0
                                 ? fmt::format("scratch {}", unit)
                                 : fmt::format("{} {} of {}", level < partials_ ? "partial" : "private", level, unit);
    const int made = program_.named(name, BufferKind::kGradient, bytes, unit);
    return level >= 0 && level < partials_ ? window(made, level, level) : made;
  }

  int window(int made, int partial, int level) {
    Buffer& b = program_.at(made);
    b.window = true;
    b.partial = partial;
    b.level = level;
    return made;
  }

  /// Gradients of an owner's parameters on a rank that is not its home: levels as of a unit's own.
  int foreign_gradient(int block, int owner, int level) {
    const Range range = extras_of(block, owner);
    const bool shared = level < partials_ && level >= 0;
    const int made =
        program_.named(fmt::format("{} {} of {} for {}", shared ? "partial" : "private", level, owner, block),
                       BufferKind::kGradient, range.size() * kFloat, owner);
    program_.at(made).range = range;
    if (shared) window(made, level, level);
    return made;
  }

  /// Whether a block's gradients of an owner's parameters lie behind the owner's own: in one chunk their passes follow
  /// one another, so that what one micro-batch left there is added up before the next one writes it.
  bool together(int block, int owner) const {
    return is_home(owner) && places_.home(model_, block) == places_.home(model_, owner) &&
           chunk_of(block) == chunk_of(owner);
  }
  int chunk_of(int block) const { return places_.chunk_of_layer[model_.blocks[block].layer]; }

  bool has_local_writers(int unit) const {
    for (size_t b = 0; b < model_.blocks.size(); ++b)
      for (const Share& share : model_.blocks[b].shares)
        if (share.unit == unit && together(static_cast<int>(b), unit)) return true;
    return false;
  }
  bool has_writers_apart(int unit) const {
    for (const auto& [block, owner] : shares_apart())
      if (owner == unit) return true;
    return false;
  }

  // ---------------------------------------------------------------- instructions

  Instruction named(Op op, const Pass& pass, int block, int segment) {
    Instruction i;
    i.op = op;
    i.block = block;
    i.segment = segment;
    i.lane = sequence_[pass.micro].lane;
    i.micro = sequence_[pass.micro].micro;
    return i;
  }

  void run(size_t p) {
    const Pass& pass = passes_[p];
    gather_for(p);
    if (pass.phase == Phase::kForward) {
      if (pass.layer == places_.chunks[pass.chunk].begin) begin_forward(pass);
      forward(pass, false);
      if (pass.layer + 1 == places_.chunks[pass.chunk].end) end_forward(pass);
    } else {
      const bool last = pass.layer + 1 == places_.chunks[pass.chunk].end;
      if (last && pass.phase != Phase::kWeight) receive_gradients(pass);
      if (pass.phase != Phase::kWeight) recompute(pass);
      backward(pass);
      if (pass.phase != Phase::kWeight && pass.layer == places_.chunks[pass.chunk].begin) send_gradients(pass);
      if (pass.phase != Phase::kInput) fold_and_reduce(pass);
    }
  }

  /// Puts the gathers on their queue whose slots are free by now: up to `depth` uses ahead.
  void gather_for(size_t p) {
    while (gathered_uses_ < uses_.size()) {
      const size_t use = gathered_uses_;
      const bool free = use < gathered_slots_ || uses_[use - gathered_slots_].last < p;
      // On one queue a gather ahead of its time would only make compute wait.
      if (!free || (!options_.overlap && uses_[use].first > p)) break;
      const int unit = uses_[use].unit;
      Instruction i;
      i.op = gathers() ? Op::kGather : Op::kFetch;
      i.block = unit;
      if (gathers()) {
        const int replica_number = home_number() * (options_.mesh.data / options_.mesh.shards) +
                                   at_.data / options_.mesh.shards;
        i.id = kGatherIds + static_cast<uint32_t>(replica_number) * kPerHome + static_cast<uint32_t>(use);
        i.group = group_of(replica(unit));
      }
      i.reads = {parameter_.at(unit)};
      i.writes = {gathered_[use % gathered_slots_]};
      program_.add(gathers() ? MeshProgram::kData : MeshProgram::kDisk, std::move(i));
      ++gathered_uses_;
    }
  }

  int home_number() const { return at_.pipeline * options_.mesh.tensor + at_.tensor; }

  /// The ranks that hold the slices of my replica of a unit.
  std::vector<int> replica(int unit) const {
    std::vector<int> ranks;
    Coordinates c = places_.home(model_, unit);
    const int first = at_.data / options_.mesh.shards * options_.mesh.shards;
    for (int z = 0; z < options_.mesh.shards; ++z) {
      c.data = first + z;
      ranks.push_back(options_.mesh.rank(c));
    }
    return ranks;
  }

  /// All data ranks of a unit's home and of the homes of those that share its parameters.
  std::vector<int> everyone(int unit) const { return users_and_owners(model_, options_, places_, unit); }

  int group_of(const std::vector<int>& ranks) const {
    const auto it = std::lower_bound(groups_.begin(), groups_.end(), ranks);
    TUTTI_CHECK(it != groups_.end() && *it == ranks, "no such group");
    return static_cast<int>(it - groups_.begin());
  }

  void begin_forward(const Pass& pass) {
    if (reads_data(pass.chunk) && !loaded_.contains(pass.micro)) {
      loaded_.insert(pass.micro);
      Instruction i = named(Op::kLoad, pass, -1, -1);
      for (size_t d = 0; d < model_.data_bytes.size(); ++d) i.writes.push_back(data(pass.micro, static_cast<int>(d)));
      program_.add(MeshProgram::kCompute, std::move(i));
    }
    if (pass.layer == 0 || same_rank(layer_before(pass).chunk)) return;
    each_border(layer_before(pass), [&](int column, int output, uint32_t number) {
      transfer(Op::kRecv, MeshProgram::kActivationsIn, pass, received(pass, column, output),
               border_bytes(pass.layer - 1, output), number, places_.stage[pass.chunk - 1]);
    });
  }

  void end_forward(const Pass& pass) {
    const bool ends = pass.layer + 1 == model_.layers();
    if (ends || same_rank(pass.chunk + 1)) return;
    each_border(pass, [&](int column, int output, uint32_t number) {
      transfer(Op::kSend, MeshProgram::kActivationsOut, pass,
               after_exchange(pass, column, last_segment(pass.layer), output, false), border_bytes(pass.layer, output),
               number, places_.stage[pass.chunk + 1]);
    });
  }

  void receive_gradients(const Pass& pass) {
    if (pass.layer + 1 == model_.layers() || same_rank(pass.chunk + 1)) return;
    each_border(pass, [&](int column, int output, uint32_t number) {
      const int to = grad_out(pass, column, last_segment(pass.layer), output);
      if (to >= 0)
        transfer(Op::kRecv, MeshProgram::kGradientsIn, pass, to, border_bytes(pass.layer, output), number + 1,
                 places_.stage[pass.chunk + 1]);
    });
  }

  void send_gradients(const Pass& pass) {
    if (pass.layer == 0 || same_rank(layer_before(pass).chunk)) return;
    const auto& inputs = model_.blocks[model_.block_at(pass.layer, 0)].segments[0].inputs;
    each_border(layer_before(pass), [&](int column, int output, uint32_t number) {
      for (size_t i = 0; i < inputs.size(); ++i)
        if (!inputs[i].data && inputs[i].index == output && inputs[i].wanted)
          transfer(Op::kSend, MeshProgram::kGradientsOut, pass, grad_in(pass, column, 0, static_cast<int>(i)),
                   border_bytes(pass.layer - 1, output), number + 1, places_.stage[pass.chunk - 1]);
    });
  }

  /// Every tensor at the end of a layer that the next one reads, with a number for its way there; the way of its
  /// gradient back has the next number.
  template <class F>
  void each_border(const Pass& end, F&& f) {
    const auto& inputs = model_.blocks[model_.block_at(end.layer + 1, 0)].segments[0].inputs;
    const int outputs =
        static_cast<int>(model_.blocks[model_.block_at(end.layer, 0)].segments[last_segment(end.layer)].outputs.size());
    for (int64_t column = columns_.begin; column < columns_.end; ++column)
      for (int output = 0; output < outputs; ++output) {
        bool read = false;
        for (const InputShape& in : inputs) read = read || (!in.data && in.index == output);
        if (!read) continue;
        const auto chunk = static_cast<uint32_t>(end.chunk), micro = static_cast<uint32_t>(end.micro);
        uint32_t number = chunk * static_cast<uint32_t>(sequence_.size()) + micro;
        number = (number * static_cast<uint32_t>(model_.columns) + static_cast<uint32_t>(column)) *
                     static_cast<uint32_t>(outputs) +
                 static_cast<uint32_t>(output);
        f(static_cast<int>(column), output,
          kSendIds + 2 * (number * static_cast<uint32_t>(options_.mesh.data) + static_cast<uint32_t>(at_.data)));
      }
  }

  /// Of a tensor at the end of a layer, and of its gradient.
  int64_t border_bytes(int layer, int output) const {
    return model_.blocks[model_.block_at(layer, 0)].segments[last_segment(layer)].outputs[output].read_bytes;
  }

  void transfer(Op op, int queue, const Pass& pass, int buffer, int64_t bytes, uint32_t id, int stage) {
    Instruction i = named(op, pass, -1, -1);
    i.id = id;
    i.bytes = bytes;
    i.peer = options_.mesh.rank({at_.data, at_.tensor, stage});
    (op == Op::kSend ? i.reads : i.writes) = {buffer};
    const bool down = pass.chunk >= options_.mesh.pipeline;
    program_.add(goes_back(options_) && down ? queue + MeshProgram::kBack : queue, std::move(i));
  }

  Flow flow(const Pass& pass, int column, int segment, bool again) {
    const int block = model_.block_at(pass.layer, column);
    const BlockShape& shape = model_.blocks[block];
    const SegmentShape& s = shape.segments[segment];
    Flow flow;
    for (size_t i = 0; i < s.inputs.size(); ++i)
      flow.in.push_back(read(pass, column, segment, static_cast<int>(i), again));
    for (size_t o = 0; o < s.outputs.size(); ++o)
      flow.out.push_back(written(pass, column, segment, static_cast<int>(o), again));
    flow.saved = saved(pass, column, segment, again || pass.phase != Phase::kForward);
    flow.work = work_;
    if (pass.phase != Phase::kWeight) {
      if (shape.unit_size > 0) flow.parameters.push_back({block, parameters(block, pass)});
      for (int owner : owners_of(block))
        flow.parameters.push_back({owner, is_home(owner) ? parameters(owner, pass) : copy_.at({block, owner})});
    }
    return flow;
  }

  std::vector<int> owners_of(int block) const {
    std::set<int> owners;
    for (const Share& share : model_.blocks[block].shares) owners.insert(share.unit);
    return {owners.begin(), owners.end()};
  }

  void forward(const Pass& pass, bool again) {
    const int segments = last_segment(pass.layer) + 1;
    for (int s = 0; s < segments; ++s) {
      const SegmentShape& shape = model_.blocks[model_.block_at(pass.layer, 0)].segments[s];
      if (again && !recomputed(pass.layer, shape)) continue;
      for (int64_t c = columns_.begin; c < columns_.end; ++c) {
        const int column = static_cast<int>(c), block = model_.block_at(pass.layer, column);
        Instruction i = named(Op::kForward, pass, block, s);
        i.again = again;
        i.flow = flow(pass, column, s, again);
        if (!again && pass.layer + 1 == model_.layers() && s + 1 == segments) i.writes.push_back(losses_);
        program_.add(MeshProgram::kCompute, std::move(i));
      }
      for (size_t o = 0; o < shape.outputs.size(); ++o)
        if (shape.outputs[o].exchange != Exchange::kNone) exchange(pass, s, static_cast<int>(o), again);
    }
  }

  void exchange(const Pass& pass, int segment, int output, bool again) {
    const OutputShape& out = model_.blocks[model_.block_at(pass.layer, 0)].segments[segment].outputs[output];
    Instruction i = meeting_of_columns(pass, segment);
    i.output = output;
    i.again = again;
    i.exchange = out.exchange;
    for (int64_t c = columns_.begin; c < columns_.end; ++c) {
      i.flow.in.push_back(written(pass, static_cast<int>(c), segment, output, again));
      const int to = after_exchange(pass, static_cast<int>(c), segment, output, again);
      if (out.exchange == Exchange::kScatter || c == columns_.begin) i.flow.out.push_back(to);
    }
    add_exchange(std::move(i), out.bytes);
  }

  /// `bytes`: of a column's partial sum.
  void add_exchange(Instruction i, int64_t bytes) {
    const int64_t parts = arriving_parts(model_.columns, options_.mesh.tensor);
    if (i.exchange == Exchange::kScatter && parts > 0)
      i.flow.work = buffer(BufferKind::kMessage, parts * (bytes / model_.columns), "arriving sums");
    program_.add(MeshProgram::kCompute, std::move(i));
  }

  Instruction meeting_of_columns(const Pass& pass, int segment) {
    Instruction i = named(Op::kExchange, pass, model_.block_at(pass.layer, 0), segment);
    i.id = kExchangeIds + static_cast<uint32_t>(at_.pipeline * options_.mesh.data + at_.data) * kPerHome + exchanges_++;
    std::vector<int> ranks;
    for (int t = 0; t < options_.mesh.tensor; ++t) ranks.push_back(options_.mesh.rank({at_.data, t, at_.pipeline}));
    i.group = group_of(ranks);
    return i;
  }

  void recompute(const Pass& pass) {
    if (options_.recompute == Recompute::kNone) return;
    Pass again = pass;
    again.phase = Phase::kForward;
    forward(again, true);
  }

  void backward(const Pass& pass) {
    const bool again = recomputed_whole(pass.layer);
    for (int s = last_segment(pass.layer); s >= 0; --s) {
      if (pass.phase != Phase::kWeight) exchange_gradients(pass, s);
      for (int64_t c = columns_.begin; c < columns_.end; ++c) backward(pass, static_cast<int>(c), s, again);
    }
  }

  /// What the next segment's backward left for my outputs with an exchange, done the other way round.
  void exchange_gradients(const Pass& pass, int segment) {
    const auto& outputs = model_.blocks[model_.block_at(pass.layer, 0)].segments[segment].outputs;
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (outputs[o].exchange == Exchange::kNone) continue;
      const Consumer next = consumer(pass, segment, static_cast<int>(o));
      if (!next.exists) continue;
      TUTTI_CHECK(next.here, "a chunk ends with an exchange");
      Instruction i = meeting_of_columns(pass, segment);
      i.output = static_cast<int>(o);
      i.part = Part::kInput;
      i.exchange = outputs[o].exchange == Exchange::kGather ? Exchange::kScatter : Exchange::kGather;
      for (int64_t c = columns_.begin; c < columns_.end; ++c) {
        i.flow.in.push_back(grad_in(next.pass, static_cast<int>(c), next.segment, next.input));
        const int to = grad_out(pass, static_cast<int>(c), segment, static_cast<int>(o));
        if (i.exchange == Exchange::kScatter || c == columns_.begin) i.flow.out.push_back(to);
      }
      const auto& inputs = model_.blocks[model_.block_at(next.pass.layer, 0)].segments[next.segment].inputs;
      add_exchange(std::move(i), inputs[next.input].grad_bytes);
    }
  }

  void backward(const Pass& pass, int column, int segment, bool again) {
    const int block = model_.block_at(pass.layer, column);
    const SegmentShape& shape = model_.blocks[block].segments[segment];
    Instruction i = named(Op::kBackward, pass, block, segment);
    i.part = pass.phase == Phase::kBoth ? Part::kBoth : pass.phase == Phase::kInput ? Part::kInput : Part::kWeight;
    i.flow = flow(pass, column, segment, again);
    if (i.part != Part::kWeight) {
      for (size_t o = 0; o < shape.outputs.size(); ++o)
        i.flow.grad_out.push_back(grad_out(pass, column, segment, static_cast<int>(o)));
      for (size_t in = 0; in < shape.inputs.size(); ++in)
        i.flow.grad_in.push_back(grad_in(pass, column, segment, static_cast<int>(in)));
    }
    if (i.part != Part::kBoth && shape.deferred_bytes > 0)
      i.flow.deferred =
          buffer(BufferKind::kSaved, shape.deferred_bytes, "deferred {}.{} slot {}", block, segment, slot(pass));
    if (i.part != Part::kInput) i.flow.gradients = gradients(block, routes_[pass.micro]);
    program_.add(MeshProgram::kCompute, std::move(i));
  }

  std::vector<UnitBuffer> gradients(int block, const Route& route) {
    std::vector<UnitBuffer> all;
    if (model_.blocks[block].gradient_size > 0) all.push_back({block, gradient(block, route.level, route.round)});
    for (int owner : owners_of(block))
      all.push_back({owner, together(block, owner) ? gradient(owner, route.level, route.round)
                                                   : foreign_gradient(block, owner, route.level)});
    return all;
  }

  void fold_and_reduce(const Pass& pass) {
    const Route& route = routes_[pass.micro];
    std::set<int> complete;  // units whose gradients of this round are all there; some are of other homes
    for (int64_t c = columns_.begin; c < columns_.end; ++c) {
      const int block = model_.block_at(pass.layer, static_cast<int>(c));
      if (model_.blocks[block].gradient_size > 0)
        fold(pass, block, route, [&](int level) { return gradient(block, level, route.round); });
      for (int owner : owners_of(block))
        if (!together(block, owner))
          fold(pass, owner, route, [&](int level) { return foreign_gradient(block, owner, level); });
      if (!route.last) continue;
      if (model_.blocks[block].gradient_size > 0 && wrote(block, block, route.round)) complete.insert(block);
      for (int owner : owners_of(block))
        if (wrote(block, owner, route.round)) complete.insert(owner);
    }
    if (!route.last) return;
    catch_up(route.round);
    for (int unit : complete) reduce(unit, route.round);
  }

  /// Notes that a block has written a unit's gradient of a round; whether it was the last one here to do so.
  bool wrote(int block, int unit, int round) {
    auto& writers = writers_[{unit, round}];
    if (writers.empty())
      for (int layer = 0; layer < model_.layers(); ++layer)
        for (int64_t c = columns_.begin; mine(layer) && c < columns_.end; ++c) {
          const int other = model_.block_at(layer, static_cast<int>(c));
          const auto owners = owners_of(other);
          if (other == unit || std::find(owners.begin(), owners.end(), unit) != owners.end()) writers.insert(other);
        }
    writers.erase(block);
    return writers.empty();
  }

  template <class F>
  void fold(const Pass& pass, int unit, const Route& route, F&& at_level) {
    if (route.folds.empty()) return;
    Instruction i = named(Op::kFold, pass, unit, -1);
    for (const auto& [into, from] : route.folds) i.adds.push_back({at_level(into), at_level(from)});
    program_.add(MeshProgram::kCompute, std::move(i));
  }

  bool in_place() const { return kept() && rounds_.size() == 1; }

  /// The owner's stack for a unit's sum.
  std::vector<int> stack(int unit) {
    if (in_place()) return {gradient(unit, 0, 0)};
    const Range own = slice(unit);
    const int64_t floats = rounds_.size() == 1 ? own.size() : own.size() + further_floats(unit, own);
    std::vector<int> levels;
    for (int level = 0; level < stack_levels(rounds_); ++level) {
      const int made = program_.named(fmt::format("slice {} of {}", level, unit), BufferKind::kGradient,
                                      align_up(floats, kAlign) * kFloat, unit);
      Buffer& b = program_.at(made);
      b.range = own;
      b.level = level;
      b.window = options_.zero == 0;
      levels.push_back(made);
    }
    return levels;
  }

  /// Floats that the further users of shared parameters take in one level of a stack.
  int64_t further_floats(int unit, Range own) const {
    int64_t floats = 0;
    for (const ParameterShape& p : model_.blocks[unit].parameters) {
      const Range part{std::max(own.begin, p.offset), std::min(own.end, p.offset + p.size)};
      if (!part.empty()) floats += part.size() * static_cast<int64_t>(p.extra_gradients.size());
    }
    return floats;
  }

  void reduce(int unit, int round) {
    Instruction i;
    i.op = Op::kReduce;
    i.block = unit;
    i.round = round;
    i.id =
        kReduceIds + static_cast<uint32_t>(unit) * static_cast<uint32_t>(rounds_.size()) + static_cast<uint32_t>(round);
    i.group = group_of(everyone(unit));
    i.reads = contributions(unit, round);
    if (is_home(unit)) i.writes = stack(unit);
    // Those who share a parameter over stages come to its sum at other times: nothing else may wait behind it.
    program_.add(shared_far(unit) ? MeshProgram::kShared : MeshProgram::kData, std::move(i));
    const bool whole = round + 1 == static_cast<int>(rounds_.size());
    if (!whole || !is_home(unit)) return;
    if (at_.data < reduce_shards()) norm(unit);
    if (options_.zero == 0 && options_.mesh.data > 1) gather_gradient(unit);
  }

  /// What this rank has for a round of a unit's sum: nothing, where it had no lane.
  std::vector<int> contributions(int unit, int round) {
    std::vector<int> list;
    const auto& all = rounds_[round].contributions;
    const int64_t own =
        std::count_if(all.begin(), all.end(), [&](const Contribution& c) { return c.data_rank == at_.data; });
    for (int p = 0; p < own; ++p) {
      if (is_home(unit)) list.push_back(gradient(unit, p, round));
      for (const auto& [block, owner] : shares_apart())
        if (owner == unit) list.push_back(foreign_gradient(block, owner, p));
    }
    return list;
  }

  void norm(int unit) {
    Instruction i;
    i.op = Op::kNorm;
    i.block = unit;
    i.reads = {stack(unit)[0]};
    const bool far = shared_far(unit);
    i.writes = {far ? shared_squares_ : squares_};
    program_.add(far ? MeshProgram::kShared : MeshProgram::kData, std::move(i));
  }

  void gather_gradient(int unit) {
    Instruction i;
    i.op = Op::kGather;
    i.block = unit;
    i.id = kGradientGatherIds + static_cast<uint32_t>(unit);
    i.group = group_of(data_ranks(unit));
    i.reads = {stack(unit)[0]};
    i.writes = {gradient(unit, 0, static_cast<int>(rounds_.size()) - 1)};
    program_.add(MeshProgram::kData, std::move(i));
  }

  std::vector<int> data_ranks(int unit) const {
    std::vector<int> ranks;
    Coordinates c = places_.home(model_, unit);
    for (c.data = 0; c.data < options_.mesh.data; ++c.data) ranks.push_back(options_.mesh.rank(c));
    return ranks;
  }

  /// A rank without a lane in a round still owns slices: it meets the others there, in the rounds' order.
  void catch_up(int until) {
    const auto parts = rounds_of(sums_, at_.data);
    for (; caught_up_ < until; ++caught_up_) {
      const int round = caught_up_;
      if (!parts[round].empty()) continue;
      std::set<std::pair<int, int>> units;  // as backward comes to them: by layer from the last, then by number
      for (int unit : my_units()) units.insert({-model_.blocks[unit].layer, unit});
      for (const auto& [block, owner] : remote_shares()) units.insert({-model_.blocks[owner].layer, owner});
      for (const auto& [layer, unit] : units) reduce(unit, round);
    }
  }

  void commit() {
    catch_up(static_cast<int>(rounds_.size()));
    const std::vector<int> units = my_units();
    // Two units' values come in while the sums are still on their way, then one behind every Update.
    for (size_t u = 0; u < units.size() && u < kFetchAhead; ++u) fetch(units[u], u);
    Instruction vote;
    vote.op = Op::kVote;
    vote.id = kVoteId;
    vote.reads = {losses_, squares_, shared_squares_};
    vote.writes = {verdict_};
    program_.add(MeshProgram::kData, std::move(vote), MeshProgram::kShared);
    for (size_t u = 0; u < units.size(); ++u) {
      update(units[u], u);
      if (u + kFetchAhead < units.size()) fetch(units[u + kFetchAhead], u + kFetchAhead);
    }
    std::set<int> refreshed;
    for (int unit : my_units())
      if ((sliced() && options_.zero < 3) || has_remote_users(unit)) refreshed.insert(unit);
    for (const auto& [block, owner] : remote_shares()) refreshed.insert(owner);
    for (int unit : refreshed) refresh(unit);
  }

  static constexpr size_t kFetchAhead = 2;

  /// Where Update finds a unit's values in memory.
  int updated_parameters(int unit, size_t turn) {
    if (!options_.offload_parameters) return parameter_.at(unit);
    return buffer(BufferKind::kParameter, program_.at(parameter_.at(unit)).bytes, "fetched parameters {}",
                  turn % kFetchAhead);
  }
  int updated_moments(int unit, size_t turn) {
    if (!options_.offload) return moment_.at(unit);
    return buffer(BufferKind::kMoment, program_.at(moment_.at(unit)).bytes, "fetched moments {}", turn % kFetchAhead);
  }

  void fetch(int unit, size_t turn) { travel_to_tier(Op::kFetch, unit, turn); }

  void travel_to_tier(Op op, int unit, size_t turn) {
    Instruction i;
    i.op = op;
    i.block = unit;
    const auto add = [&](int tier, int memory) {
      (op == Op::kFetch ? i.reads : i.writes).push_back(tier);
      (op == Op::kFetch ? i.writes : i.reads).push_back(memory);
    };
    if (options_.offload_parameters) add(parameter_.at(unit), updated_parameters(unit, turn));
    if (options_.offload) add(moment_.at(unit), updated_moments(unit, turn));
    if (!i.reads.empty()) program_.add(MeshProgram::kDisk, std::move(i));
  }

  void update(int unit, size_t turn) {
    Instruction i;
    i.op = Op::kUpdate;
    i.block = unit;
    const bool whole = options_.zero == 0 && options_.mesh.data > 1;
    const int from = whole ? gradient(unit, 0, static_cast<int>(rounds_.size()) - 1) : stack(unit)[0];
    const int parameters = updated_parameters(unit, turn), moments = updated_moments(unit, turn);
    i.reads = {verdict_, from, parameters, moments};
    i.writes = {parameters, moments};
    program_.add(MeshProgram::kCompute, std::move(i));
    travel_to_tier(Op::kEvict, unit, turn);
  }

  /// New values for those that hold them whole: data ranks of ZeRO-1 and 2, copies of shared parameters.
  void refresh(int unit) {
    Instruction i;
    i.op = Op::kGather;
    i.block = unit;
    i.id = kRefreshIds + static_cast<uint32_t>(unit);
    i.group = group_of(everyone(unit));
    if (is_home(unit)) {
      i.reads = {parameter_.at(unit)};
      if (sliced() && options_.zero < 3) i.writes = {parameter_.at(unit)};
    } else {
      for (const auto& [block, owner] : remote_shares())
        if (owner == unit) i.writes.push_back(copy_.at({block, owner}));
    }
    program_.add(MeshProgram::kData, std::move(i));
  }

  const ModelShape& model_;
  const MeshOptions& options_;
  const MeshPlaces& places_;
  const std::vector<std::vector<int>>& groups_;
  const Coordinates at_;
  const Range columns_;
  MeshProgram program_;
  const SumOptions sums_;
  const std::vector<Round> rounds_;
  const std::vector<MicroBatch> sequence_;
  bool shared_by_alias_ = false;

  std::vector<Route> routes_;  // by micro-batch of the sequence
  int partials_ = 0;
  std::vector<Cell> cells_;
  std::vector<std::vector<int>> slot_;        // [chunk][micro]
  std::vector<std::vector<int>> again_slot_;  // [chunk][micro]: from the input to the weight part
  std::vector<int> data_slot_;                // by micro
  std::vector<Pass> passes_;
  std::vector<Use> uses_;
  size_t gathered_slots_ = 0, gathered_uses_ = 0;
  int caught_up_ = 0;  // rounds before it were met in
  uint32_t exchanges_ = 0;
  std::set<int> loaded_;
  std::map<std::pair<int, int>, std::set<int>> writers_;  // (unit, round): who has still to write its gradient here
  std::map<int, int> parameter_, moment_;
  std::map<std::pair<int, int>, int> copy_;     // (block, owner)
  std::map<std::pair<int, int>, int> passing_;  // (unit, round): which of the windows that gradients pass through
  std::map<int, int> passed_;                   // by column: how many did
  std::vector<int> gathered_;
  int work_ = -1, losses_ = -1, squares_ = -1, shared_squares_ = -1, verdict_ = -1;
};

}  // namespace

int reduce_shards_of(const MeshOptions& options) { return options.zero == 0 ? options.mesh.data : options.mesh.shards; }

std::string schedule_of(const MeshOptions& options) { return options.mesh.pipeline == 1 ? "1f1b" : options.schedule; }

Coordinates MeshPlaces::home(const ModelShape& model, int unit) const {
  const BlockShape& block = model.blocks[unit];
  Coordinates c;
  c.pipeline = stage[chunk_of_layer[block.layer]];
  while (!columns[c.tensor].contains(block.column)) ++c.tensor;
  return c;
}

MeshPlaces mesh_places(const ModelShape& model, const MeshOptions& options) {
  MeshPlaces places;
  const std::string schedule = schedule_of(options);
  const int stages = options.mesh.pipeline, chunks = stages * chunks_of(schedule, options.chunks);
  if (options.cut.empty()) {
    std::vector<double> costs;
    for (int layer = 0; layer < model.layers(); ++layer) {
      double flops = 1;  // a layer without any costs something, too
      for (const SegmentShape& segment : model.blocks[model.block_at(layer, 0)].segments) flops += segment.flops;
      costs.push_back(flops);
    }
    places.chunks = cut_by_cost(costs, chunks);
  } else {
    std::vector<int> begins{0};
    begins.insert(begins.end(), options.cut.begin(), options.cut.end());
    begins.push_back(model.layers());
    for (size_t c = 0; c + 1 < begins.size(); ++c) places.chunks.push_back({begins[c], begins[c + 1]});
  }
  for (int chunk = 0; chunk < chunks; ++chunk) {
    places.stage.push_back(stage_of(schedule, stages, chunk));
    for (int64_t layer = places.chunks[chunk].begin; layer < places.chunks[chunk].end; ++layer)
      places.chunk_of_layer.push_back(chunk);
  }
  for (int t = 0; t < options.mesh.tensor; ++t)
    places.columns.push_back(lanes_of(t, options.mesh.tensor, model.columns));
  for (const BlockShape& block : model.blocks) {
    std::vector<Range> parameters;
    for (const ParameterShape& p : block.parameters) parameters.push_back({p.offset, p.offset + p.size});
    places.slices.push_back(slices_of(parameters, block.unit_size, reduce_shards_of(options)));
  }
  return places;
}

std::vector<int> users_and_owners(const ModelShape& model, const MeshOptions& options, const MeshPlaces& places,
                                  int unit) {
  std::vector<Coordinates> homes{places.home(model, unit)};
  for (size_t b = 0; b < model.blocks.size(); ++b)
    for (const Share& share : model.blocks[b].shares) {
      if (share.unit != unit) continue;
      const Coordinates user = places.home(model, static_cast<int>(b));
      if (std::find(homes.begin(), homes.end(), user) == homes.end()) homes.push_back(user);
    }
  std::vector<int> ranks;
  for (Coordinates home : homes)
    for (home.data = 0; home.data < options.mesh.data; ++home.data) ranks.push_back(options.mesh.rank(home));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

namespace {

bool shares_over_ranks(const ModelShape& model, const MeshOptions& options) {
  const MeshPlaces places = mesh_places(model, options);
  for (size_t b = 0; b < model.blocks.size(); ++b)
    for (const Share& share : model.blocks[b].shares)
      if (places.home(model, static_cast<int>(b)) != places.home(model, share.unit)) return true;
  return false;
}

bool shares_over_chunks(const ModelShape& model, const MeshOptions& options) {
  const MeshPlaces places = mesh_places(model, options);
  for (const BlockShape& block : model.blocks)
    for (const Share& share : block.shares)
      if (places.chunk_of_layer[block.layer] != places.chunk_of_layer[model.blocks[share.unit].layer]) return true;
  return false;
}

}  // namespace

std::vector<std::string> mesh_faults(const ModelShape& model, const MeshOptions& options) {
  std::vector<std::string> faults;
  const Mesh& mesh = options.mesh;
  const std::string schedule = schedule_of(options);
  const int chunks = mesh.pipeline * chunks_of(schedule, options.chunks);
  if (model.layers() < chunks)
    faults.push_back(fmt::format("{} stages of {} chunks need {} layers, but the model has {}", mesh.pipeline,
                                 chunks / mesh.pipeline, chunks, model.layers()));
  if (!options.cut.empty() && static_cast<int>(options.cut.size()) + 1 != chunks)
    faults.push_back(fmt::format("the cut makes {} parts, but {} stages with {} chunks each need {}",
                                 options.cut.size() + 1, mesh.pipeline, chunks / mesh.pipeline, chunks));
  if (!std::is_sorted(options.cut.begin(), options.cut.end(), std::less_equal<>()) ||
      (!options.cut.empty() && (options.cut.front() < 1 || options.cut.back() >= model.layers())))
    faults.push_back("the cut's blocks must come one after the other, behind the first");
  if (model.columns < mesh.tensor)
    faults.push_back(fmt::format("{} tensor ranks but the model is defined in {} slices: a rank owns at least one",
                                 mesh.tensor, model.columns));
  if (options.batch.lanes < mesh.data)
    faults.push_back(
        fmt::format("{} data ranks but {} lanes: a rank owns at least one", mesh.data, options.batch.lanes));
  if (options.zero == 3 && mesh.shards > 1 && options.batch.lanes % mesh.data != 0)
    faults.push_back(fmt::format("ZeRO-3 gathers in step: {} lanes cannot be dealt out evenly over {} data ranks",
                                 options.batch.lanes, mesh.data));
  if (options.owner && options.batch.micro_batches > 1 && !options.micro)
    faults.push_back("fold = \"owner\" needs micro_batches = 1 or order = \"micro\"");
  if (options.offload_parameters && mesh.shards > 1)
    faults.push_back("ZeRO's slices are read by other ranks, so parameters cannot be offloaded; offload the optimizer");
  if (options.offload_parameters && faults.empty() && shares_over_ranks(model, options))
    faults.push_back("parameters that other ranks share are read there, so they cannot be offloaded");
  if (mesh.shards < 1 || mesh.data % mesh.shards != 0)
    faults.push_back(fmt::format("{} data ranks cannot be cut into shards of {}", mesh.data, mesh.shards));
  if (chunks > mesh.pipeline && (options.owner || options.micro) && options.batch.lanes % mesh.data != 0)
    faults.push_back(fmt::format("stages of several chunks sum more than once in a step, which {} data ranks with "
                                 "unequal parts of {} lanes would do in different orders",
                                 mesh.data, options.batch.lanes));
  if (faults.empty() && chunks > mesh.pipeline && (options.owner || options.micro) &&
      shares_over_chunks(model, options))
    faults.push_back(fmt::format("schedule = \"{}\" has several chunks a stage: a parameter that two of them share can be "
                                 "summed only once in a step, not with fold = \"owner\" or order = \"micro\"",
                                 schedule));
  if (splits_backward(schedule)) {
    std::set<std::string> whole;
    for (const BlockShape& block : model.blocks)
      for (const SegmentShape& segment : block.segments)
        if (!segment.splits) whole.insert(block.name + "." + segment.name);
    if (!whole.empty())
      faults.push_back(fmt::format("schedule = \"{}\" runs backward in two parts, which {} cannot", schedule,
                                   fmt::join(whole, ", ")));
  }
  return faults;
}

namespace {

std::vector<std::vector<int>> make_groups(const ModelShape& model, const MeshOptions& options,
                                          const MeshPlaces& places) {
  const Mesh& mesh = options.mesh;
  std::set<std::vector<int>> groups;
  for (int p = 0; p < mesh.pipeline; ++p)
    for (int d = 0; d < mesh.data; ++d) {
      std::vector<int> tensor;
      for (int t = 0; t < mesh.tensor; ++t) tensor.push_back(mesh.rank({d, t, p}));
      groups.insert(std::move(tensor));
    }
  for (int p = 0; p < mesh.pipeline; ++p)
    for (int t = 0; t < mesh.tensor; ++t) {
      std::vector<int> all;
      for (int d = 0; d < mesh.data; ++d) all.push_back(mesh.rank({d, t, p}));
      for (int d = 0; d < mesh.data; d += mesh.shards)
        groups.insert(std::vector<int>(all.begin() + d, all.begin() + d + mesh.shards));
      groups.insert(std::move(all));
    }
  for (size_t u = 0; u < model.blocks.size(); ++u)
    groups.insert(users_and_owners(model, options, places, static_cast<int>(u)));
  return {groups.begin(), groups.end()};
}

}  // namespace

Plan plan_mesh(const ModelShape& model, const MeshOptions& options) {
  const MeshPlaces places = mesh_places(model, options);
  Plan plan;
  plan.lanes = options.batch.lanes;
  plan.ranks = options.mesh.ranks();
  plan.groups = make_groups(model, options, places);
  for (int rank = 0; rank < plan.ranks; ++rank)
    plan.programs.push_back(RankMaker(model, options, places, plan.groups, rank).make());
  return plan;
}

Program plan_mesh_rank(const ModelShape& model, const MeshOptions& options, int rank) {
  const MeshPlaces places = mesh_places(model, options);
  const auto groups = make_groups(model, options, places);
  return RankMaker(model, options, places, groups, rank).make();
}

}  // namespace tutti
