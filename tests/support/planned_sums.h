// The sums of a plan of data parallelism and how they come to all ranks, without any model:
// gradients are written where backward would, Reduces and Gathers are run, and what each Update
// reads is compared with the tree.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/lending.h"
#include "comm/pulls.h"
#include "net/make.h"
#include "plan/ir/plan_memory.h"
#include "plan/make/plan_mesh.h"
#include "plan/search/link_bytes.h"
#include "support/lane_values.h"

namespace tutti::testing_support {

struct PlannedCase {
  int ranks = 1, lanes = 1, hosts = 1;
  bool root = false, ring = false;
  bool shared = false;  ///< the last block uses a parameter of the first, too
  bool merged = true;   ///< small units travel together
  std::vector<int64_t> sizes{5000, 700, 97};
  uint64_t seed = 1;

  std::string text() const {
    return fmt::format("{} ranks of {} hosts, {} lanes{}{}{}{}, seed {}", ranks, hosts, lanes,
                       root ? ", root" : "", ring ? ", ring" : "", shared ? ", shared" : "",
                       merged ? "" : ", apart", seed);
  }
  std::vector<int> host_list() const {
    std::vector<int> list;
    for (int r = 0; r < ranks; ++r) list.push_back(host_of(r, ranks, hosts));
    return list;
  }

  /// Blocks of two parameters each, so that units have padding.
  ModelShape model() const {
    ModelShape model;
    for (size_t b = 0; b < sizes.size(); ++b) {
      BlockShape block;
      block.name = fmt::format("block{}", b);
      block.layer = static_cast<int>(b);
      for (int64_t size : {sizes[b], int64_t{5}}) {
        block.parameters.push_back(
            {.name = fmt::format("{}.{}", block.name, block.parameters.size()),
             .dims = {size},
             .offset = block.unit_size,
             .size = size});
        block.unit_size += align_up(size, kAlign);
      }
      block.gradient_size = block.unit_size;
      block.segments.resize(1);
      model.blocks.push_back(std::move(block));
    }
    if (shared) {
      BlockShape& owner = model.blocks.front();
      owner.parameters[0].extra_gradients = {owner.gradient_size};
      owner.gradient_size += align_up(owner.parameters[0].size, kAlign);
      model.blocks.back().shares = {{0, 0, 0}};
      model.blocks.back().writes_units = {0};
    }
    return model;
  }

  Plan plan(bool windows) const {
    MeshOptions options;
    options.mesh.data = ranks;
    options.batch.lanes = lanes;
    options.hosts = hosts;
    options.windows = windows;
    options.fold = root ? FoldKind::kRoot : FoldKind::kLocal;
    options.ring = ring;
    if (!merged) options.bucket_floats = 0;
    EXPECT_EQ(mesh_faults(model(), options), std::vector<std::string>()) << text();
    return plan_mesh(model(), options);
  }

  /// What lane sums a unit's source has.
  uint64_t seed_of(int unit, size_t source) const {
    return seed + 1000 * source + 100'000 * static_cast<uint64_t>(unit);
  }
};

/// One rank of a case.
class PlannedSums {
 public:
  /// `plan`: the case's, for this transport.
  PlannedSums(const PlannedCase& c, const Plan& plan, Transport& transport)
      : case_(c),
        plan_(plan),
        transport_(transport),
        me_(transport.rank()),
        memory_(transport.window().empty() ? window_bytes(program()) : 0),
        arena_(memory_.empty() ? transport.window() : std::span(memory_)),
        lending_(plan, me_, transport) {
    bool windows = true;
    for (int r = 0; r < c.ranks; ++r) windows = windows && !transport.window_of(r).empty();
    int64_t scratch = 0;
    for (const Instruction* i : all(Op::kReduce))
      scratch = std::max(scratch, SumPull::scratch_bytes(plan.sums[i->transfer], me_, windows));
    scratch_.resize(static_cast<size_t>(scratch));
    for (const Instruction* i : all(Op::kReduce)) sums_.push_back(make_sum(*i));
    for (const Instruction* i : all(Op::kGather))
      copies_.push_back(std::make_unique<CopyPull>(
          plan.copies[i->transfer], name_of(*i), transport, arena_,
          [this](int b) { return reinterpret_cast<std::byte*>(floats(b)); }));
    for (int r = 0; r < c.ranks; ++r)
      sent_before_.push_back(r == me_ ? 0 : transport.sent_bytes(r));
  }

  /// `vote` meets all ranks.
  void run(uint64_t step, const std::function<void()>& vote, Deadline deadline) {
    SCOPED_TRACE(case_.text() +
                 fmt::format(", rank {} over {}, step {}", me_, transport_.name(), step));
    for (const Instruction* i : all(Op::kAcquire)) lending_.acquire(i->parcel, step, deadline);
    fill(step);
    reduce(step, deadline);
    vote();
    for (const Instruction* i : all(Op::kUpdate)) expect_sum(*i, step);
    for (const Instruction* i : all(Op::kRelease)) lending_.release(i->parcel, step);
    ++steps_;
  }

  /// The transfers of a step, one after the other.
  void reduce(uint64_t step, Deadline deadline) {
    for (const auto& sum : sums_) sum->run(step, deadline);
    for (const auto& copy : copies_) copy->run(step, deadline);
  }

  /// What this rank has sent is what the plan says.
  void expect_sent() const {
    const LinkBytes planned = link_bytes(plan_, case_.model());
    for (int to = 0; to < case_.ranks && !case_.ring; ++to) {
      if (to == me_) continue;
      const int64_t bytes = transport_.window_of(to).empty() ? planned[me_][to] : 0;
      EXPECT_EQ(transport_.sent_bytes(to) - sent_before_[to], static_cast<uint64_t>(steps_ * bytes))
          << case_.text() << ": from " << me_ << " to " << to << " over " << transport_.name();
    }
  }

  std::string first_name() const { return to_string(*all(Op::kReduce)[0]); }

 private:
  const Program& program() const { return plan_.programs[me_]; }
  std::vector<const Instruction*> all(Op op) const {
    std::vector<const Instruction*> found;
    for (const Queue& queue : program().queues)
      for (const Instruction& i : queue.instructions)
        if (i.op == op) found.push_back(&i);
    return found;
  }
  static TransferName name_of(const Instruction& i) { return {i.id, i.parcel, to_string(i)}; }

  float* floats(int buffer) const {
    const Buffer& b = program().buffers.at(static_cast<size_t>(buffer));
    EXPECT_TRUE(b.window) << b.name;
    return reinterpret_cast<float*>(arena_.data() + b.window_offset);
  }

  std::unique_ptr<SumPull> make_sum(const Instruction& i) {
    const SumTransfer& transfer = plan_.sums[i.transfer];
    std::vector<std::vector<float*>> levels;
    for (const UnitSum& unit : transfer.units)
      levels.push_back(levels_of(plan_, i, unit, me_, [this](int b) { return floats(b); }));
    return make_sum_pull(transfer, name_of(i), transport_, arena_, std::move(levels), scratch_);
  }

  /// All is NaN but what this rank's lanes have: whoever reads too early, too late or elsewhere
  /// finds out.
  void fill(uint64_t step) {
    std::fill_n(reinterpret_cast<float*>(arena_.data()), arena_.size() / 4,
                std::numeric_limits<float>::quiet_NaN());
    const std::vector<Range> parts = subtrees(lanes_of(me_, case_.ranks, case_.lanes), case_.lanes);
    for (const Instruction* i : all(Op::kReduce)) {
      const SumTransfer& transfer = plan_.sums[i->transfer];
      for (const UnitSum& unit : transfer.units)
        for (size_t s = 0; s < unit.sources.size() && transfer.round == 0; ++s) {
          const SumSource& source = unit.sources[s];
          size_t part = 0;
          for (const SumSource::Term& term : source.terms) {
            if (term.rank != me_) continue;
            const Range lanes = parts.at(part++);
            auto* at = reinterpret_cast<float*>(arena_.data() + term.offset);
            for (int64_t k = source.to.begin; k < source.to.end; ++k)
              *at++ = tree_value(case_.seed_of(unit.unit, s), step, lanes.begin, lanes.size(), k);
          }
          EXPECT_EQ(part, parts.size());
        }
    }
  }

  WantedSum wanted(uint64_t step, int unit, int64_t i) const {
    WantedSum sum;
    const bool tied = case_.shared && unit == 0 && i < case_.sizes[0];
    for (size_t s = 0; s < (tied ? 2 : 1); ++s) {
      const uint64_t seed = case_.seed_of(unit, s);
      sum.add(tree_value(seed, step, 0, case_.lanes, i));
      for (int lane = 0; lane < case_.lanes; ++lane) sum.add_value(lane_value(seed, step, lane, i));
    }
    return sum;
  }

  void expect_sum(const Instruction& update, uint64_t step) const {
    int64_t wrong = 0, read = 0;
    for (const Operand* part : operands_of(update, OperandRole::kGradient)) {
      const int owner = part->rank < 0 ? me_ : part->rank;
      const std::span<const std::byte> memory = owner == me_ ? arena_ : transport_.window_of(owner);
      const Buffer& buffer = plan_.programs[owner].buffers.at(static_cast<size_t>(part->buffer));
      const auto* sum =
          reinterpret_cast<const float*>(memory.data() + buffer.window_offset) - buffer.range.begin;
      for (int64_t i = part->range.begin; i < part->range.end; ++i, ++read) {
        const WantedSum want = wanted(step, part->unit, i);
        const bool good = case_.ring ? want.is_close(sum[i]) : want.has_bits(sum[i]);
        if (!good && wrong++ == 0)
          ADD_FAILURE() << "unit " << part->unit << " float " << i << " of rank " << owner << ": "
                        << sum[i] << " != " << want.tree;
      }
    }
    EXPECT_EQ(read, case_.model().blocks[update.block].unit_size)
        << "Update reads all of unit " << update.block;
  }

  const PlannedCase& case_;
  const Plan& plan_;
  Transport& transport_;
  const int me_;
  std::vector<std::byte> memory_;
  const std::span<std::byte> arena_;
  Lending lending_;
  std::vector<std::byte> scratch_;
  std::vector<std::unique_ptr<SumPull>> sums_;
  std::vector<std::unique_ptr<CopyPull>> copies_;
  std::vector<uint64_t> sent_before_;
  int64_t steps_ = 0;
};

/// A transport for the case: windows where it has some. Collective.
inline std::unique_ptr<Transport> transport_for(const PlannedCase& c, const Plan& plan,
                                                const std::string& kind, Rendezvous& rendezvous,
                                                Clock& clock) {
  TransportOptions options{.kind = kind, .hosts = c.host_list()};
  for (const Program& program : plan.programs)
    if (kind != "tcp")
      options.window_bytes =
          std::max(options.window_bytes, static_cast<size_t>(window_bytes(program)));
  return make_transport(options, Epoch{c.seed, 1, 1}, rendezvous, clock, nullptr,
                        clock.after(std::chrono::seconds(20)));
}

/// Runs the case for `steps` steps. Collective.
inline void run_planned(const PlannedCase& c, const std::string& kind, Rendezvous& rendezvous,
                        int steps) {
  SystemClock clock;
  const auto soon = [&] { return clock.after(std::chrono::seconds(20)); };
  const auto meet = [&] { rendezvous.exchange({}, soon()); };
  const Plan plan = c.plan(kind != "tcp");
  auto transport = transport_for(c, plan, kind, rendezvous, clock);
  PlannedSums sums(c, plan, *transport);
  for (int step = 0; step < steps; ++step) sums.run(step, meet, soon());
  sums.expect_sent();
  meet();  // nobody leaves while others still read
}

/// The last of three ranks never comes to its sums: the others give up at their deadline, naming
/// it. Collective.
inline void expect_missing_rank(const PlannedCase& c, const std::string& kind, int rank,
                                Rendezvous& rendezvous) {
  SystemClock clock;
  const Plan plan = c.plan(kind != "tcp");
  auto transport = transport_for(c, plan, kind, rendezvous, clock);
  PlannedSums sums(c, plan, *transport);
  if (rank != 2) {
    try {
      sums.reduce(7, clock.after(std::chrono::milliseconds(200)));
      ADD_FAILURE() << "reduced without rank 2";
    } catch (const CommError& e) {
      EXPECT_EQ(e.failure().operation, sums.first_name());
      EXPECT_EQ(e.failure().peer, 2) << e.what();
      EXPECT_EQ(e.failure().sequence, 7U);
    }
  }
  rendezvous.exchange({}, clock.after(std::chrono::seconds(20)));
}

/// All layouts of `ranks` ranks that the tests go through: lanes, hosts, who makes the sums, shared
/// parameters, ring.
inline std::vector<PlannedCase> layouts(int ranks, uint64_t seed) {
  std::vector<PlannedCase> all;
  const auto add = [&](PlannedCase c) {
    c.seed = seed + all.size();
    all.push_back(std::move(c));
  };
  for (int lanes : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
    if (lanes < ranks) continue;
    for (int hosts = 1; hosts <= ranks; ++hosts)
      for (bool root : {false, true})
        for (bool shared : {false, true})
          add({.ranks = ranks,
               .lanes = lanes,
               .hosts = hosts,
               .root = root,
               .shared = shared,
               .merged = lanes % 2 == 0});
    add({.ranks = ranks, .lanes = lanes, .ring = true, .shared = lanes % 2 == 0});
  }
  return all;
}

}  // namespace tutti::testing_support
