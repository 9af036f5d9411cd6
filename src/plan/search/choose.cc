// The search over layouts, from cheap to dear: all meshes are listed, those that break a rule are
// refused, and a formula estimates the others. In the order of these estimates they are planned and
// simulated, with one rank per role, until enough instructions were simulated; the best of them are
// simulated once more with all ranks.
#include "plan/search/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/bytes.h"
#include "base/error.h"
#include "config/job_parts.h"
#include "plan/make/pipeline_schedule.h"
#include "plan/search/roles.h"

namespace tutti {

namespace {

constexpr size_t kEnoughInstructions = 4'000'000;  // planned in all: some ten seconds of search
constexpr size_t kAtLeast = 24;                    // candidates that are simulated, however large
constexpr size_t kRefined = 12;   // candidates that are simulated with all ranks in the end
constexpr size_t kNearest = 8;    // layouts that are planned to be named where nothing fits
constexpr double kAsGood = 1.02;  // no prediction is more exact than 2 %
// From this many stages on, orders made to measure take too long to find.
constexpr int kManyStages = 16;
constexpr int kManyRanks = 64;  // above this, one rank stands for its role

/// How much machinery a layout asks for: the tie-breaker among layouts that are predicted to be
/// alike. ZeRO-1 counts nothing: every rank has its slices of the sums anyway.
int machinery(const MeshOptions& o) {
  return std::max(0, o.zero - 1) + (o.mesh.pipeline > 1 ? 2 : 0) + (o.mesh.tensor > 1 ? 2 : 0) +
         (o.owner() ? 1 : 0) + 2 * static_cast<int>(o.recompute);
}

class Search {
 public:
  Search(const ModelShape& model, const SearchRequest& request) : model_(model), request_(request) {
    // What estimate() and least_bytes() need of the model, added up once for all layouts.
    for (size_t b = 0; b < model.blocks.size(); ++b) {
      floats_ += static_cast<double>(model.blocks[b].unit_size);
      for (size_t s = 0; s < model.blocks[b].segments.size(); ++s) {
        const SegmentSeconds seconds =
            segment_seconds(model, static_cast<int>(b), static_cast<int>(s), request.cost);
        forward_ += seconds.forward;
        backward_ += seconds.input + seconds.weight;
        attention_ |= model.blocks[b].segments[s].attention;
        for (const OutputShape& o : model.blocks[b].segments[s].outputs)
          if (o.exchange != Exchange::kNone)
            exchanged_.push_back(static_cast<double>(std::max(o.bytes, o.read_bytes)));
      }
    }
  }

  SearchResult run() {
    struct Estimated {
      double seconds;
      MeshOptions options;
    };

    // The promising ones come first, so that the limit below cuts off those that would lose. The
    // sort is stable: every run of the search gives the same list.
    std::vector<Estimated> listed;
    for (MeshOptions& options : list()) {
      if (!allowed(options)) continue;
      const double seconds = estimate(options);
      listed.push_back({seconds, std::move(options)});
    }
    std::stable_sort(listed.begin(), listed.end(),
                     [](const auto& a, const auto& b) { return a.seconds < b.seconds; });

    // Planning and simulating is what takes time, and it takes it per instruction.
    size_t instructions = 0, tried = 0;
    for (const Estimated& candidate : listed) {
      if (instructions > kEnoughInstructions && tried >= kAtLeast) {
        reject("slower than the others by an estimate: not simulated", candidate.options);
        continue;
      }
      ++tried;
      instructions += try_recomputes(candidate.options);
    }

    // Where nothing fits, the user learns which layouts come nearest to the memory there is.
    refine();
    if (result_.best.empty() && result_.nearest.empty()) measure_hopeless();
    std::stable_sort(
        result_.nearest.begin(), result_.nearest.end(),
        [](const Candidate& a, const Candidate& b) { return a.memory.total() < b.memory.total(); });

    for (auto& [reason, layouts] : rejected_)
      result_.rejected.push_back({reason, std::move(layouts)});
    result_.lanes = request_.base.batch.lanes, result_.columns = model_.columns,
    result_.blocks = model_.layers();
    return std::move(result_);
  }

 private:
  void reject(const std::string& reason, const MeshOptions& options) {
    rejected_[reason].push_back(layout_name(options));
  }

  /// All layouts of the space. Recompute stays at what is given, or at none: try_recomputes() turns
  /// it on where it is needed.
  std::vector<MeshOptions> list() const {
    const SearchSpace& space = request_.space;
    std::vector<MeshOptions> all;
    for (int pipeline = 1; pipeline <= request_.ranks; ++pipeline) {
      if (request_.ranks % pipeline != 0 || !space.allows(&LayoutConfig::pipeline, pipeline))
        continue;
      for (int tensor = 1; tensor <= request_.ranks / pipeline; ++tensor) {
        if (request_.ranks / pipeline % tensor != 0 || !space.allows(&LayoutConfig::tensor, tensor))
          continue;
        MeshOptions options = request_.base;
        options.mesh = {request_.ranks / pipeline / tensor, tensor, pipeline, 1};
        options.recompute =
            space.has(&LayoutConfig::recompute) ? space.job.layout.recompute : Recompute::kNone;
        list_schedules(options, all);
      }
    }
    return all;
  }
  void list_schedules(MeshOptions options, std::vector<MeshOptions>& all) const {
    const SearchSpace& space = request_.space;
    for (const PipelinePart& part : parts<PipelinePart>()) {
      options.schedule = part.name;
      if (options.mesh.pipeline == 1 && options.schedule != plain_schedule())
        continue;  // nothing to choose
      if (options.mesh.pipeline > 1 && !space.allows(&LayoutConfig::schedule, options.schedule))
        continue;
      // More than its default, 2, is left to who asks for it: every further chunk is another plan.
      if (space.has(&LayoutConfig::chunks)) options.chunks = space.job.layout.chunks;
      for (int in_flight : in_flight_of(options)) {
        options.in_flight = in_flight;
        list_zero(options, all);
      }
    }
  }
  /// How many micro-batches a chunk keeps: 0 is the published order; twice the stages give an order
  /// made to measure room for stages that are unequal.
  std::vector<int> in_flight_of(const MeshOptions& options) const {
    if (options.mesh.pipeline == 1 || !splits_backward(options.schedule)) return {0};
    if (request_.space.has(&LayoutConfig::in_flight)) return {request_.space.job.layout.in_flight};
    if (options.mesh.pipeline > kManyStages) return {0};
    return {0, 2 * options.mesh.pipeline};
  }
  void list_zero(MeshOptions options, std::vector<MeshOptions>& all) const {
    const SearchSpace& space = request_.space;
    for (int zero = 0; zero <= 3; ++zero) {
      if (!space.allows(&LayoutConfig::zero, zero)) continue;
      if (options.mesh.data == 1 && zero > 0 && !space.has(&LayoutConfig::zero))
        continue;  // nothing to slice
      options.zero = zero;
      for (int shards : shards_of(options)) {
        options.mesh.shards = shards;
        for (const FoldKind fold : {FoldKind::kLocal, FoldKind::kOwner, FoldKind::kRoot}) {
          // One data rank has nobody to share its sums with, so "owner" would change nothing; a
          // root alone is slower than all ranks together, so it is only tried when somebody
          // asks for it.
          const bool pays =
              fold == FoldKind::kLocal || (fold == FoldKind::kOwner && options.mesh.data > 1);
          if (space.has(&LayoutConfig::fold) ? space.job.layout.fold != fold : !pays) continue;
          options.fold = fold;
          all.push_back(options);
        }
      }
    }
  }
  /// ZeRO slices over all data ranks, or inside the hosts.
  std::vector<int> shards_of(const MeshOptions& options) const {
    const SearchSpace& space = request_.space;
    const int data = options.mesh.data;
    if (options.zero == 0) return {1};
    if (space.has(&LayoutConfig::shards))
      return {space.job.layout.shards == 0 ? data : static_cast<int>(space.job.layout.shards)};

    // Inside a host gathers stay off the network, at the price of a replica on every host.
    const std::set<int> hosts(request_.cost.hosts.begin(), request_.cost.hosts.end());
    const auto n = static_cast<int>(std::max<size_t>(hosts.size(), 1));
    if (n > 1 && data % n == 0 && data / n > 1) return {data, data / n};
    return {data};
  }

  bool allowed(const MeshOptions& options) {
    const auto faults = mesh_faults(model_, options);
    for (const std::string& fault : faults) reject(fault, options);
    if (!faults.empty()) return false;

    // Only what the mesh allows is shown to the job, which may know further reasons.
    if (request_.refuse) {
      if (const std::string reason = request_.refuse(options); !reason.empty()) {
        reject(reason, options);
        return false;
      }
    }
    return true;
  }

  /// A step's seconds by a formula, to order candidates: compute, bubble, and what travels.
  ///   apart   ranks over which the model itself is divided: tensor x pipeline
  ///   micros  micro-batches that pass through the busiest data rank in a step
  ///   moved   bytes that a data rank gets from the others when a sum is made or values gathered
  double estimate(const MeshOptions& o) const {
    const double apart = o.mesh.tensor * o.mesh.pipeline, data = o.mesh.data;
    const double micros =
        std::ceil(static_cast<double>(o.batch.lanes) / data) * o.batch.micro_batches;
    const double bubble = o.mesh.pipeline > 1 ? bubble_formula(o.schedule, o.mesh.pipeline,
                                                               o.chunks, static_cast<int>(micros))
                                              : 0;

    // Compute is divided evenly over the ranks that hold the model, and stretched by the bubble.
    double seconds = (forward_ + backward_) * micros / apart / (1 - std::min(bubble, 0.99));

    // Where hosts are given, all messages count as the network's: the slowest link holds
    // up the others.
    const TransportRates& rates = request_.cost.calibration.rates_of(
        request_.cost.hosts.empty() ? request_.cost.transport : kNetwork);

    // Exchanges come in forward and in backward. exchanged_ lists them for every column, and stages
    // work on theirs at the same time: hence the division by columns and stages.
    if (o.mesh.tensor > 1)
      for (double bytes : exchanged_)
        seconds += 2 * micros * (o.mesh.tensor - 1) *
                   message_seconds(rates, bytes / o.mesh.tensor) /
                   (apart * model_.columns / o.mesh.tensor);

    // The data axis: a sum travels to its owners and their results back, or new parameters do.
    // With fold = "owner" every round is summed. ZeRO-3 gathers parameters for forward and
    // again for backward.
    const double moved = floats_ * 4 / apart * (data - 1) / data;
    const double each = message_seconds(rates, 1 << 20) / (1 << 20);
    seconds += moved * each * (o.owner() ? micros + 1 : 2);
    if (o.zero == 3) seconds += moved * each * 2 * micros;
    return seconds;
  }

  /// Simulates a layout with as little recompute as fits. Returns the number of instructions
  /// that were planned.
  size_t try_recomputes(MeshOptions options) {
    // What does not even have room for its state needs no plan to be refused.
    const std::string too_much =
        fmt::format("needs more than {} per rank", bytes_text(request_.memory));
    if (const double least = least_bytes(options);
        request_.memory > 0 && least > static_cast<double>(request_.memory)) {
      reject(too_much, options);
      hopeless_.emplace_back(least, options);
      return 0;
    }

    // From the fastest way to the one that takes the least memory; the first that fits is taken.
    std::vector<Recompute> ways{options.recompute};
    if (!request_.space.has(&LayoutConfig::recompute) && request_.memory > 0) {
      if (attention_) ways.push_back(Recompute::kSelective);
      ways.push_back(Recompute::kFull);
    }
    size_t instructions = 0;
    Candidate candidate;
    for (Recompute way : ways) {
      options.recompute = way;
      const Rehearsal tried = rehearse(model_, request_, options, true);
      for (const Program& program : tried.programs)
        for (const Queue& queue : program.queues) instructions += queue.instructions.size();
      candidate = describe(options, tried.simulation);
      if (request_.memory == 0 || candidate.memory.total() <= request_.memory) {
        result_.best.push_back(std::move(candidate));
        return instructions;
      }
    }

    // It fits in no way. It is kept all the same: the user may want to know by how much.
    reject(too_much, options);
    candidate.seconds = 0;
    result_.nearest.push_back(std::move(candidate));
    return instructions;
  }

  /// Bytes of the state alone on an average rank of a mesh; gradients that pass through are
  /// never held whole.
  double least_bytes(const MeshOptions& options) const {
    const bool passes = options.owner() || options.micro;
    const SlotSizes sizes{
        options.offload_parameters() ? 0.0 : 4.0, passes ? 0.0 : 4.0,
        request_.base.offload_moments() ? 0.0 : 4.0 * request_.base.optimizer_slots};
    return state_bytes(floats_ / (options.mesh.tensor * options.mesh.pipeline), options.mesh.shards,
                       options.zero, sizes);
  }

  /// Plans the layouts that come nearest to fitting, among those that were refused without a plan.
  void measure_hopeless() {
    std::stable_sort(hopeless_.begin(), hopeless_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 0; i < std::min(kNearest, hopeless_.size()); ++i) {
      MeshOptions options = hopeless_[i].second;
      if (!request_.space.has(&LayoutConfig::recompute)) options.recompute = Recompute::kFull;
      result_.nearest.push_back(
          describe(options, rehearse(model_, request_, options, true).simulation));
      result_.nearest.back().seconds = 0;
    }
  }

  /// What a simulation says of a layout: seconds and shares of the step, and the bytes of the rank
  /// that has most.
  Candidate describe(const MeshOptions& options, const Simulation& simulation) const {
    Candidate c;
    c.options = options;
    c.seconds = simulation.seconds;
    c.bubble = simulation.bubble_share();
    c.exposed = simulation.exposed_share();
    for (const RankSimulation& rank : simulation.ranks) {
      if (rank.memory.total() >= c.memory.total()) c.memory = rank.memory;
      for (int axis = 0; axis < kAxes; ++axis) {
        c.link[axis] = std::max(c.link[axis], rank.link[static_cast<size_t>(axis)]);
        c.received[axis] = std::max(c.received[axis], rank.received[static_cast<size_t>(axis)]);
      }
    }
    return c;
  }

  /// Simulates the best candidates with all their ranks, sorts them, and puts the simplest of those
  /// that are as good as the fastest in front.
  void refine() {
    const auto faster = [](const Candidate& a, const Candidate& b) {
      return a.seconds < b.seconds;
    };
    std::stable_sort(result_.best.begin(), result_.best.end(), faster);

    // With all ranks a candidate may turn out to need more memory than the ranks that stood
    // for them did.
    std::vector<Candidate> fit;
    for (size_t i = 0; i < result_.best.size(); ++i) {
      Candidate& c = result_.best[i];
      if (i < kRefined && request_.ranks <= kManyRanks)
        c = describe(c.options, rehearse(model_, request_, c.options, false).simulation);
      if (request_.memory == 0 || c.memory.total() <= request_.memory) {
        fit.push_back(std::move(c));
      } else {
        reject(fmt::format("needs more than {} per rank", bytes_text(request_.memory)), c.options);
      }
    }
    result_.best = std::move(fit);
    std::stable_sort(result_.best.begin(), result_.best.end(), faster);

    // Predictions differ from reality by more than the first few do from each other.
    if (result_.best.empty()) return;
    const double as_good = result_.best.front().seconds * kAsGood;
    auto simplest = result_.best.begin();
    for (auto it = simplest; it != result_.best.end() && it->seconds <= as_good; ++it)
      if (machinery(it->options) < machinery(simplest->options)) simplest = it;
    std::rotate(result_.best.begin(), simplest, simplest + 1);
  }

  const ModelShape& model_;
  const SearchRequest& request_;
  double floats_ = 0, forward_ = 0, backward_ = 0;  // of the model; seconds of one micro-batch
  bool attention_ = false;
  std::vector<double> exchanged_;  // bytes of every output that columns exchange
  SearchResult result_;
  std::map<std::string, std::vector<std::string>> rejected_;
  std::vector<std::pair<double, MeshOptions>> hopeless_;  // with their least bytes
};

}  // namespace

SearchResult search_layouts(const ModelShape& model, const SearchRequest& request) {
  return Search(model, request).run();
}

Rehearsal rehearse(const ModelShape& model, const SearchRequest& request,
                   const MeshOptions& options, bool by_role) {
  Rehearsal rehearsal;
  const CostModel cost = mesh_cost(model, options, request.cost);

  // Above kManyRanks a plan of all ranks would take longer than it is worth.
  if (!by_role && options.mesh.ranks() <= kManyRanks) {
    rehearsal.programs = plan_mesh(model, options).programs;
    rehearsal.simulation = simulate(rehearsal.programs, cost);
  } else {
    rehearsal.programs = role_programs(model, options);
    rehearsal.simulation = simulate(rehearsal.programs, cost, role_weights(options, cost));
  }
  return rehearsal;
}

}  // namespace tutti
