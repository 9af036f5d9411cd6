// Poses the question to the search (job, machine, hosts, memory), asks it, and prints the answer. A
// job for a GPU is resolved even on a host without one.
#include "app/layouts/plan_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "app/doctor/doctor_host.h"
#include "app/layouts/hosts_file.h"
#include "app/layouts/layouts_json.h"
#include "app/layouts/segment_times.h"
#include "app/train_command.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text/lists.h"
#include "base/text/seconds.h"
#include "base/text/terminal.h"
#include "config/isa.h"
#include "config/job_parts.h"
#include "config/schema.h"
#include "config/value.h"
#include "device/library.h"
#include "engine/device/rank_device.h"
#include "infer/prepare.h"
#include "model/adapt/adaptor.h"
#include "model/core/dry_run.h"
#include "model/rules/rules.h"
#include "optim/optimizer.h"
#include "plan/search/choose.h"
#include "plan/search/timeline_svg.h"
#include "tensor/threads.h"
#include "train/rank_plan.h"

namespace tutti {

namespace {

constexpr size_t kShown = 10;
constexpr size_t kReasons = 20, kNamed = 3;  // for rejections, and layouts of one

/// A job that is resolved without the layout that is searched.
struct Planned {
  Job asked;  ///< as written
  Job job;
  Machine machine;
  int ranks = 1;
  bool cuda() const { return job.numerics.device == DeviceKind::kCuda; }
  /// A job of a GPU on a host that has none: one that nobody knows stands for it.
  bool elsewhere() const { return cuda() && machine.gpus.front().total_bytes == 0; }
  /// The job whose model is looked at: without a GPU that of the CPU, which has the same units and
  /// FLOPs.
  Job described() const {
    Job here = job;
    if (elsewhere())
      here.numerics.device = DeviceKind::kCpu, here.numerics.precision = Precision::kFloat32;
    return here;
  }
};

/// Gives the layout keys that say nothing to the job their defaults: a run would refuse them.
void forget_idle(Job& job) {
  for (const Key& key : keys())
    if (key.layout && !key.idle_reason(job).empty()) key.set(job, key.fallback);
}

Planned plan_job(const PlanArguments& arguments, bool elsewhere) {
  Planned planned;
  planned.asked = load_job(arguments.job, parse_settings(arguments.set, arguments.ranks));
  if (!arguments.hosts.empty() && planned.asked.layout.ranks == 0)
    planned.asked.layout.ranks = host_slots(read_file(arguments.hosts), arguments.hosts);
  planned.job = planned.asked;
  Job& job = planned.job;
  forget_layout(job);
  job.layout.hosts = 1, job.layout.ranks = 0;
  forget_idle(job);
  planned.machine = this_machine();
  add_gpus(planned.machine, job.numerics.device);
  if (elsewhere && planned.cuda() && planned.machine.gpus.empty())
    planned.machine.gpus.push_back({.name = "GPU"});
  resolve(job, planned.machine, model_rules());
  planned.ranks = static_cast<int>(planned.asked.layout.ranks > 0 ? planned.asked.layout.ranks
                                                                  : job.layout.ranks);
  return planned;
}

/// The job with a candidate's layout, as a run would have it: what is not searched is as written.
Job with_layout(const Planned& planned, const MeshOptions& options) {
  Job job = planned.job;
  for (const Key& key : keys())
    if (key.layout && !key.searched) key.set(job, key.get(planned.asked));
  job.layout.ranks = planned.ranks;
  set_layout(job, options);
  forget_idle(job);
  return job;
}

/// Finds a setting that has no meaning on the layout, which a run would refuse.
std::string idle_setting(const Job& asked, const Job& job) {
  for (const Key& key : keys()) {
    if (!key.layout || key.get(asked) == key.fallback) continue;
    if (const std::string reason = key.idle_reason(job); !reason.empty())
      return fmt::format("{} = {} is set, which has no meaning with {}", key.full_name(),
                         value_text(key.get(asked)), reason);
  }
  return "";
}

std::string refusal(const Planned& planned, const MeshOptions& options) {
  Job job = with_layout(planned, options);
  if (std::string idle = idle_setting(planned.asked, job); !idle.empty()) return idle;
  try {
    resolve(job, planned.machine, model_rules());
    return "";
  } catch (const ConfigError& e) {
    return e.faults().front();
  }
}

std::vector<int> hosts_of(const PlanArguments& arguments, const Planned& planned) {
  if (!arguments.hosts.empty())
    return parse_hosts(read_file(arguments.hosts), arguments.hosts, planned.ranks);
  std::vector<int> hosts;
  const auto n = static_cast<int>(std::min<int64_t>(planned.asked.layout.hosts, planned.ranks));
  if (n > 1)
    for (int rank = 0; rank < planned.ranks; ++rank)
      hosts.push_back(host_of(rank, planned.ranks, n));
  return hosts;
}

/// A rank's share of the memory of a machine like this one; 0: that is not known.
int64_t memory_share(const Planned& planned, const std::vector<int>& hosts) {
  std::map<int, int64_t> ranks;
  for (int host : hosts) ++ranks[host];
  int64_t most = hosts.empty() ? planned.ranks : 1;
  for (const auto& [host, n] : ranks) most = std::max(most, n);
  if (planned.cuda()) {
    const auto gpus = static_cast<int64_t>(planned.machine.gpus.size());
    return planned.machine.gpus.front().total_bytes /
           std::max<int64_t>(1, (most + gpus - 1) / gpus);
  }
  return look_at_host().memory_limit / most;
}

void print_best(const SearchResult& result) {
  const auto by_hosts = [](const Candidate& c) {
    return c.link[static_cast<size_t>(Axis::kHosts)] > 0;
  };
  const bool hosts = std::any_of(result.best.begin(), result.best.end(), by_hosts);

  // The column of hosts is there only if some layout sends anything between hosts.
  fmt::print("{:>3} {:>10} {:>8} {:>8} {:>10} {:>10} {}{:>10} {:>10}  {}\n", "", "step", "bubble",
             "exposed", "peak", "data", hosts ? fmt::format("{:>10} ", "hosts") : "", "tensor",
             "pipeline", "layout");
  fmt::print("{:>3} {:>10} {:>8} {:>8} {:>10} {:>{}}\n", "", "", "", "", "per rank",
             "per link and step", hosts ? 43 : 32);
  for (size_t i = 0; i < std::min(kShown, result.best.size()); ++i) {
    const Candidate& c = result.best[i];
    const auto link = [&](Axis axis) {
      const double bytes = c.link[static_cast<size_t>(axis)];
      return bytes > 0 ? bytes_text(bytes) : std::string("-");
    };
    fmt::print("{:>3} {:>10} {:>6.1f} % {:>6.1f} % {:>10} {:>10} {}{:>10} {:>10}  {}\n", i + 1,
               seconds_text(c.seconds), 100 * c.bubble, 100 * c.exposed,
               bytes_text(c.memory.total()), link(Axis::kData),
               hosts ? fmt::format("{:>10} ", link(Axis::kHosts)) : "", link(Axis::kTensor),
               link(Axis::kPipeline), layout_name(c.options));
  }
}

void print_rejected(const SearchResult& result) {
  if (result.rejected.empty()) return;
  fmt::print("\nrejected\n");
  std::vector<std::string> reasons;
  for (const Rejection& r : merged(result.rejected)) {
    std::string& text = reasons.emplace_back(fmt::format("{:>5}  {}", r.layouts.size(), r.reason));
    for (const std::string& layout : first_few(r.layouts, kNamed))
      text += fmt::format("\n         {}", layout);
  }
  for (const std::string& reason : first_few(std::move(reasons), kReasons))
    fmt::print("{}\n", reason);
}

void print_largest(const SearchResult& result, const SearchRequest& request) {
  if (request.memory == 0) return;
  const Candidate* largest = nullptr;
  int64_t size = 0;
  for (const Candidate& c : result.best) {
    const int64_t fits =
        largest_micro_batch(c.memory, request.base.batch.micro_batch_size, request.memory);
    if (fits > size) size = fits, largest = &c;
  }
  if (largest == nullptr) return;
  const Candidate& best = result.best.front();
  fmt::print("\nlargest micro-batch in {}: {} samples on the best layout, {} on {}\n",
             bytes_text(request.memory),
             largest_micro_batch(best.memory, request.base.batch.micro_batch_size, request.memory),
             size, layout_name(largest->options));
}

CostOptions cost_of(const PlanArguments& arguments, const Planned& planned, const Model& model) {
  CostOptions cost;
  if (!arguments.calibration.empty() && planned.cuda())
    throw ConfigError({fmt::format(
        "--calibration {} but numerics.device = \"cuda\": it holds rates of a CPU, those of a GPU "
        "are assumed; leave it out, or set numerics.device = \"cpu\"",
        arguments.calibration)});
  if (!arguments.calibration.empty() && !path_exists(arguments.calibration))
    throw ConfigError(
        {fmt::format("--calibration {}: there is no such file; `tutti calibrate --out {}` makes it",
                     arguments.calibration, arguments.calibration)});

  // GPUs have no calibration file: their rates are assumed.
  cost.calibration =
      planned.cuda() ? default_calibration(DeviceKind::kCuda, 1,
                                           planned.job.numerics.precision != Precision::kFloat32)
                     : load_calibration(arguments.calibration.empty() ? calibration_path()
                                                                      : arguments.calibration,
                                        planned.machine.cores);
  cost.transport = planned.job.layout.transport;
  cost.hosts = hosts_of(arguments, planned);
  cost.own_processors = planned.cuda();
  if (!arguments.quick && !planned.cuda()) cost.measured = time_segments(model);
  return cost;
}

/// Which machine the rates are of, and whether they were measured.
std::string machine_text(const Planned& planned, const Calibration& c) {
  if (planned.cuda())
    return fmt::format(
        "{}; assumed are {} in {}, {} of memory, {} between GPUs, {} to the host",
        planned.elsewhere() ? "no GPU here" : planned.machine.gpus.front().name,
        rate_text(c.matmul.front(), "FLOP"), planned.job.numerics.precision,
        rate_text(c.copy.alone, "B"),
        rate_text(
            1e9 / message_seconds(
                      c.rates_of(std::string(automatic_transport(true, Workers::kProcess))), 1e9),
            "B"),
        rate_text(c.tier, "B"));
  return c.measured ? fmt::format("{} cores, calibrated: {}", c.cores, c.source)
                    : "not calibrated: rates are assumed; `tutti calibrate` measures them";
}

void print_header(const Planned& planned, const ModelShape& shape, const SearchRequest& request) {
  const TrainConfig& t = planned.job.train;
  const CostOptions& cost = request.cost;
  fmt::print("job      {}: {} lanes x {} x {}, {}, {:.4g} M parameters\n", planned.job.name,
             t.lanes, t.micro_batches, t.micro_batch_size, t.optimizer,
             static_cast<double>(shape.parameter_count()) / 1e6);
  fmt::print("machine  {}\n", machine_text(planned, cost.calibration));

  // Segments were run on this machine, or their seconds follow from what they declare.
  if (cost.measured.empty()) {
    const bool wider = planned.elsewhere() && planned.job.numerics.precision != Precision::kFloat32;
    fmt::print("segments not run: by the FLOPs and bytes that they declare{}\n",
               wider ? " in float32" : "");
  } else {
    SegmentSeconds all;
    for (const auto& block : cost.measured)
      for (const SegmentSeconds& s : block)
        all.forward += s.forward, all.input += s.input, all.weight += s.weight;
    fmt::print("segments measured: a micro-batch takes {} forward, {} back\n",
               seconds_text(all.forward), seconds_text(all.input + all.weight));
  }
  const std::set<int> hosts(cost.hosts.begin(), cost.hosts.end());
  fmt::print("ranks    {}{}, {}, {}\n\n", request.ranks,
             hosts.size() > 1 ? fmt::format(" on {} hosts", hosts.size()) : "", cost.transport,
             request.memory > 0 ? fmt::format("at most {} each", bytes_text(request.memory))
                                : "memory without a limit: --memory sets one");
}

/// All that the search needs.
struct Question {
  Planned planned;
  ModelShape shape;
  SearchRequest request;
};

/// `elsewhere`: it will not run here, so that this host may lack the GPU that the job asks for.
Question pose(const PlanArguments& arguments, const MakeModel& make_model, bool elsewhere) {
  Question question{plan_job(arguments, elsewhere), {}, {}};
  const Planned& planned = question.planned;
  const Job& job = planned.job;
  choose_library_isa();
  prepare_compute_thread(1);
  const RankDevice device = planned.elsewhere() ? RankDevice() : open_rank_device(job, 0);
  const Model model = prepared_model(planned.described(), make_model, /*fresh=*/false);

  // What ATen allocates can only be measured where the model can run.
  ModelShape& shape = question.shape;
  shape = describe(model);
  if (!arguments.quick && device)
    dry_run(model, shape, *device.device, device.at_device(), compute_type(job));
  if (!arguments.quick && !planned.cuda()) dry_run(model, shape);

  // The search varies the options of a single rank; what it does not vary is as the job says.
  SearchRequest& request = question.request;
  request.ranks = planned.ranks;
  request.space = {planned.asked};
  request.cost = cost_of(arguments, planned, model);
  Job base = planned.asked;  // the cut and the depth as written
  base.layout.ranks = base.layout.tensor = base.layout.pipeline = 1;
  base.train = job.train;
  base.numerics = job.numerics;
  request.base =
      mesh_options(base, shape, static_cast<int>(make_optimizer(job.train)->slots().size()));

  // Windows are there only where every host has its ranks in order, as a run would group them.
  request.base.hosts = hosts_in_order(request.cost.hosts);
  const bool grouped = request.cost.hosts.empty() || request.base.hosts > 1;
  request.base.windows = grouped && part_named<TransportPart>(job.layout.transport).windows;
  request.memory = arguments.memory.empty() ? memory_share(planned, request.cost.hosts)
                                            : parse_bytes(arguments.memory);
  request.refuse = [planned](const MeshOptions& options) { return refusal(planned, options); };
  return question;
}

}  // namespace

int plan_command(const PlanArguments& arguments, const MakeModel& make_model) {
  for (const std::string& out : {arguments.json, arguments.picture})
    if (!out.empty()) refuse_bad_output(out);
  const auto [planned, shape, request] = pose(arguments, make_model, /*elsewhere=*/true);
  print_header(planned, shape, request);
  std::fflush(stdout);
  const SearchResult result = search_layouts(shape, request);
  if (result.best.empty()) throw ConfigError(no_layout_faults(result, request));

  // The best come first, then what is wrong with them and what was left out.
  print_best(result);
  if (const std::string warning = idle_warning(result.best.front()); !warning.empty())
    fmt::print("\nwarning  of the first layout: {}\n", warning);
  print_rejected(result);
  print_largest(result, request);

  // Files are written last: what is printed does not depend on them.
  if (!arguments.json.empty()) write_output(arguments.json, layouts_json(planned.job, result));
  if (!arguments.picture.empty()) {
    const MeshOptions& options = result.best.front().options;
    const Rehearsal shown = rehearse(shape, request, options, false);
    write_output(arguments.picture,
                 timeline_svg(shown.programs, shown.simulation,
                              fmt::format("{}: {}", planned.job.name, layout_name(options))));
    show(stdout, fmt::format("\n{}\n", arguments.picture));
  }
  return 0;
}

Job planned_job(const PlanArguments& arguments, const MakeModel& make_model) {
  const auto [planned, shape, request] = pose(arguments, make_model, /*elsewhere=*/false);
  const SearchResult result = search_layouts(shape, request);
  if (result.best.empty()) throw ConfigError(no_layout_faults(result, request));
  Job job = with_layout(planned, result.best.front().options);
  resolve(job, planned.machine, model_rules());
  return job;
}

}  // namespace tutti
