// How one rank's step is laid out:
//
//   L  the rank's lanes, S its maximal subtrees, p a position of the fold stack (p < S: partial p in the window, else
//   private) per lane and micro-batch: Load, Forward over all segments, Backward over all segments in reverse micro 0
//   writes the unit's buffer at the stack's top, later ones scratch that a Fold adds to it: left to right after the
//   last micro the Fold goes on down the stack: the tree's sums that end at this lane the data queue reduces a bucket
//   as soon as the last lane's last fold (or backward) of its units is done
#include "plan/make/ddp.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"

namespace tutti {

namespace {

constexpr int64_t kFloat = sizeof(float);

int64_t gradient_floats(const BlockShape& block) { return align_up(block.gradient_size, kAlign); }

std::vector<Bucket> make_buckets(const ModelShape& model, int64_t bucket_floats) {
  std::vector<Bucket> buckets;
  bool open = false;
  for (int unit = static_cast<int>(model.blocks.size()) - 1; unit >= 0; --unit) {
    const int64_t floats = gradient_floats(model.blocks[unit]);
    if (floats == 0) continue;
    if (!open) buckets.emplace_back();
    Bucket& bucket = buckets.back();
    bucket.units.push_back(unit);
    bucket.unit_offset.push_back(bucket.partial_size);
    bucket.partial_size += floats;
    // The gradients of a shared parameter's other users lie behind everything that is reduced: nothing may follow them.
    const bool further_users = model.blocks[unit].gradient_size > model.blocks[unit].unit_size;
    open = bucket.partial_size < bucket_floats && !further_users;
  }
  return buckets;
}

/// Where the gradient of one (lane, micro) goes and what is added to what when its backward is done.
struct Route {
  int level = -1;                          ///< the stack position it is written to; -1: scratch
  std::vector<std::pair<int, int>> folds;  ///< (into, from) by level, -1: scratch
  bool last = false;                       ///< of the rank's step
};

class ProgramMaker {
 public:
  ProgramMaker(const ModelShape& model, const DdpOptions& options, const std::vector<Bucket>& buckets, int rank)
      : model_(model), options_(options), buckets_(buckets), bucket_of_(model.blocks.size(), -1) {
    program_.rank = rank;
    program_.lanes = lanes_of(rank, options.ranks, options.lanes);
    program_.queues.push_back({"compute", {}});
    if (options.overlap) program_.queues.push_back({"data", {}});
    for (size_t b = 0; b < buckets.size(); ++b) {
      for (int unit : buckets[b].units) bucket_of_[unit] = static_cast<int>(b);
    }
    // Numbers of instructions that meet come first: they are the same on every rank.
    next_id_ = static_cast<uint32_t>(buckets.size()) * 4 + 1;
  }

  Program make() {
    make_model_buffers();
    partials_ = static_cast<int>(subtrees(program_.lanes, options_.lanes).size());
    for (const Bucket& bucket : buckets_) {
      for (int p = 0; p < partials_; ++p) {
        for (int unit : bucket.units) gradient(unit, p);
      }
    }
    acquire();
    run_lanes();
    reduce();
    update();
    return std::move(program_);
  }

 private:
  int add_buffer(std::string name, BufferKind kind, int64_t bytes, int unit = -1, int partial = -1, int level = -1) {
    program_.buffers.push_back({std::move(name), kind, bytes, unit, partial, level});
    return static_cast<int>(program_.buffers.size()) - 1;
  }

  void make_model_buffers() {
    int64_t widest = 0, work = 0;
    int64_t before = 0;  // bytes of the border in front of a segment, as far as its gradient has memory of its own
    for (size_t u = 0; u < model_.blocks.size(); ++u) {
      const BlockShape& block = model_.blocks[u];
      const int64_t bytes = align_up(block.unit_size, kAlign) * kFloat;
      const int unit = static_cast<int>(u);
      parameter_.push_back(add_buffer(fmt::format("parameter {}", u), BufferKind::kParameter, bytes, unit));
      moment_.push_back(
          add_buffer(fmt::format("moments {}", u), BufferKind::kMoment, bytes * options_.optimizer_slots, unit));
      for (size_t s = 0; s < block.segments.size(); ++s) {
        const SegmentShape& segment = block.segments[s];
        saved_.push_back(add_buffer(fmt::format("saved {}.{}", u, s), BufferKind::kSaved, segment.saved_bytes));
        border_.push_back(add_buffer(fmt::format("border {}.{}", u, s), BufferKind::kBorder, segment.border_bytes));
        for (const InputShape& input : segment.inputs) before -= input.consumed ? input.grad_bytes : 0;
        widest = std::max(widest, before);
        before = segment.border_bytes;
        work = std::max(work, segment.work_bytes);
      }
    }
    widest = std::max(widest, before);
    data_ = add_buffer("data", BufferKind::kData, options_.data_bytes);
    // Gradients of borders: one comes in while the other goes out.
    holds_ = {add_buffer("work", BufferKind::kWork, work),
              add_buffer("border gradient in", BufferKind::kBorder, widest),
              add_buffer("border gradient out", BufferKind::kBorder, widest)};
  }

  /// The unit's gradient buffer at a stack position, or its scratch; made when first asked for. Scratch is shared,
  /// except by units that other blocks write into: those blocks' own backwards run between their writers and would
  /// overwrite it.
  int gradient(int unit, int level) {
    const bool shared = level < 0 && !model_.has_foreign_writers(unit);
    const auto [it, fresh] = gradients_.try_emplace({shared ? -1 : unit, level}, -1);
    if (!fresh) return it->second;
    if (shared) {
      int64_t floats = 0;
      for (size_t u = 0; u < model_.blocks.size(); ++u) {
        if (!model_.has_foreign_writers(static_cast<int>(u)))
          floats = std::max(floats, gradient_floats(model_.blocks[u]));
      }
      return it->second = add_buffer("scratch", BufferKind::kGradient, floats * kFloat);
    }
    const int64_t bytes = gradient_floats(model_.blocks[unit]) * kFloat;
    if (level < 0) return it->second = add_buffer(fmt::format("scratch {}", unit), BufferKind::kGradient, bytes, unit);
    const int partial = level < partials_ ? level : -1;
    return it->second = add_buffer(fmt::format("{} {} of {}", partial >= 0 ? "partial" : "private", level, unit),
                                   BufferKind::kGradient, bytes, unit, partial, level);
  }

  std::vector<int> window(int bucket, int partials) {
    std::vector<int> list;
    for (int p = 0; p < partials; ++p) {
      for (int unit : buckets_[bucket].units) list.push_back(gradient(unit, p));
    }
    return list;
  }

  Instruction& add(size_t queue, Op op) {
    Instruction instruction;
    instruction.op = op;
    instruction.id = next_id_++;
    return program_.queues[queue].instructions.emplace_back(std::move(instruction));
  }
  Instruction& add_meeting(Op op, int bucket, uint32_t id) {
    Instruction instruction;
    instruction.op = op;
    instruction.id = id;
    instruction.bucket = bucket;
    return program_.queues.back().instructions.emplace_back(std::move(instruction));
  }
  uint32_t bucket_id(size_t bucket, int which) const { return static_cast<uint32_t>(bucket) * 4 + which; }
  /// The order of one queue needs no events.
  int new_event() { return options_.overlap ? program_.events++ : -1; }
  static void wait_for(Instruction& instruction, int event) {
    if (event >= 0) instruction.waits.push_back(event);
  }

  void acquire() {
    for (size_t b = 0; b < buckets_.size(); ++b) {
      Instruction& i = add_meeting(Op::kAcquire, static_cast<int>(b), bucket_id(b, 0));
      i.writes = window(static_cast<int>(b), partials_);
      i.signal = new_event();
      acquired_.push_back(i.signal);
    }
    complete_.assign(buckets_.size(), -1);
  }

  void run_lanes() {
    int held = 0;  // positions of the stack in use
    for (int64_t lane = program_.lanes.begin; lane < program_.lanes.end; ++lane) {
      const size_t sums = sums_after_lane(lane, program_.lanes, options_.lanes).size();
      const bool away = options_.micro_batches == 1 && sums > 0;
      for (int micro = 0; micro < options_.micro_batches; ++micro) {
        Route route;
        route.level = micro > 0 || away ? -1 : held;
        route.last = micro + 1 == options_.micro_batches && lane + 1 == program_.lanes.end;
        if (micro > 0) route.folds.emplace_back(held, -1);
        if (micro + 1 == options_.micro_batches) {
          for (size_t k = 0; k < sums; ++k) {
            const int from = held - static_cast<int>(k);
            route.folds.emplace_back(from - 1, k == 0 && away ? -1 : from);
          }
        }
        run_micro(static_cast<int>(lane), micro, route);
      }
      held += 1 - static_cast<int>(sums);
    }
    TUTTI_CHECK(held == partials_, "rank {} ends with {} partials of {}", program_.rank, held, partials_);
  }

  void run_micro(int lane, int micro, const Route& route) {
    add(0, Op::kLoad).writes = {data_};
    program_.queues[0].instructions.back().lane = lane;
    program_.queues[0].instructions.back().micro = micro;
    const int blocks = static_cast<int>(model_.blocks.size());
    int at = 0;  // of the segment in the model
    const auto pass = [&](Op op, int block, int segment) -> Instruction& {
      Instruction& i = add(0, op);
      i.block = block, i.segment = segment, i.lane = lane, i.micro = micro;
      i.reads = {data_};
      if (at > 0) i.reads.push_back(border_[at - 1]);
      if (model_.blocks[block].unit_size > 0) i.reads.push_back(parameter_[block]);
      for (int owner : model_.blocks[block].writes_units) i.reads.push_back(parameter_[owner]);
      i.holds = holds_;
      return i;
    };
    for (int block = 0; block < blocks; ++block) {
      for (size_t s = 0; s < model_.blocks[block].segments.size(); ++s, ++at) {
        pass(Op::kForward, block, static_cast<int>(s)).writes = {border_[at], saved_[at]};
      }
    }
    for (int block = blocks - 1; block >= 0; --block) {
      const std::vector<int> targets = gradient_targets(block, route);
      for (int s = static_cast<int>(model_.blocks[block].segments.size()) - 1; s >= 0; --s) {
        --at;
        Instruction& i = pass(Op::kBackward, block, s);
        i.reads.insert(i.reads.end(), {border_[at], saved_[at]});
        i.writes = targets;
        wait_for_windows(i);
      }
      if (bucket_of_[block] >= 0) fold(block, lane, micro, route);
    }
  }

  std::vector<int> gradient_targets(int block, const Route& route) {
    std::vector<int> targets;
    if (bucket_of_[block] >= 0) targets.push_back(gradient(block, route.level));
    for (int owner : model_.blocks[block].writes_units) targets.push_back(gradient(owner, route.level));
    return targets;
  }

  /// The first writer into a bucket's partials waits until no peer reads them; later ones come after it on the same
  /// queue.
  void wait_for_windows(Instruction& backward) {
    for (int buffer : backward.writes) {
      const Buffer& b = program_.buffers[buffer];
      if (b.partial < 0) continue;
      wait_for(backward, std::exchange(acquired_[bucket_of_[b.unit]], -1));
    }
  }

  void fold(int unit, int lane, int micro, const Route& route) {
    if (!route.folds.empty()) {
      Instruction& i = add(0, Op::kFold);
      i.block = unit, i.lane = lane, i.micro = micro;
      for (const auto& [into, from] : route.folds) i.adds.push_back({gradient(unit, into), gradient(unit, from)});
    }
    const int bucket = bucket_of_[unit];
    if (route.last && buckets_[bucket].units.back() == unit) {
      Instruction& last = program_.queues[0].instructions.back();
      TUTTI_CHECK(last.signal < 0, "two buckets are complete at once");
      last.signal = complete_[bucket] = new_event();
    }
  }

  void reduce() {
    for (size_t b = 0; b < buckets_.size(); ++b) {
      const int bucket = static_cast<int>(b);
      const std::vector<int> result = window(bucket, 1);
      Instruction& reduce = add_meeting(Op::kReduce, bucket, bucket_id(b, 1));
      reduce.reads = window(bucket, partials_);
      reduce.writes = result;
      wait_for(reduce, complete_[b]);
      add_meeting(Op::kNorm, bucket, bucket_id(b, 2)).reads = result;
      Instruction& gather = add_meeting(Op::kGather, bucket, bucket_id(b, 3));
      gather.reads = gather.writes = result;
    }
    voted_ = new_event();
    add_meeting(Op::kVote, -1, bucket_id(buckets_.size(), 0)).signal = voted_;
  }

  void update() {
    for (size_t b = 0; b < buckets_.size(); ++b) {
      for (int unit : buckets_[b].units) {
        Instruction& i = add(0, Op::kUpdate);
        i.block = unit, i.bucket = static_cast<int>(b);
        i.reads = {gradient(unit, 0), parameter_[unit], moment_[unit]};
        i.writes = {parameter_[unit], moment_[unit]};
        wait_for(i, std::exchange(voted_, -1));
      }
    }
  }

  const ModelShape& model_;
  const DdpOptions& options_;
  const std::vector<Bucket>& buckets_;
  Program program_;
  std::vector<int> bucket_of_;  // by unit; -1: no parameters
  int partials_ = 0;
  uint32_t next_id_ = 0;
  std::vector<int> parameter_, moment_;  // buffers by unit
  std::vector<int> saved_, border_;      // buffers by segment of the model
  std::vector<int> holds_;
  int data_ = -1;
  std::map<std::pair<int, int>, int> gradients_;  // (unit, level) -> buffer
  std::vector<int> acquired_, complete_;          // events by bucket
  int voted_ = -1;
};

}  // namespace

Plan plan_ddp(const ModelShape& model, const DdpOptions& options) {
  TUTTI_CHECK(options.ranks >= 1 && options.ranks <= options.lanes, "{} ranks on {} lanes", options.ranks,
              options.lanes);
  TUTTI_CHECK(options.micro_batches >= 1, "{} micro-batches", options.micro_batches);
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    TUTTI_CHECK(!model.blocks[b].segments.empty(), "block {} has no segments", model.blocks[b].name);
    for (int owner : model.blocks[b].writes_units) {
      TUTTI_CHECK(owner >= 0 && owner < static_cast<int>(b) && model.blocks[owner].gradient_size > 0,
                  "block {} shares a parameter of block {}, which is not an earlier one with parameters", b, owner);
    }
  }
  Plan plan;
  plan.lanes = options.lanes;
  plan.ranks = options.ranks;
  plan.buckets = make_buckets(model, options.bucket_floats);
  for (int rank = 0; rank < options.ranks; ++rank) {
    plan.programs.push_back(ProgramMaker(model, options, plan.buckets, rank).make());
  }
  return plan;
}

}  // namespace tutti
