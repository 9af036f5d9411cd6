// Both need the model, and so ATen, which must not have run in the process that forks the ranks: a
// child finds out.
#include "app/layouts/layout_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "app/apart.h"
#include "app/layouts/plan_command.h"
#include "base/error.h"
#include "base/text/message.h"
#include "config/check/job_check.h"
#include "config/schema.h"
#include "config/value.h"
#include "exec/tier.h"
#include "infer/prepare.h"
#include "optim/optimizer.h"
#include "plan/make/pipeline_schedule.h"
#include "plan/search/choose.h"
#include "tensor/threads.h"
#include "train/rank_plan.h"

namespace tutti {

namespace {

// The first byte of what the other process answers tells an answer from the faults of the job.
constexpr char kAnswer = '+', kFaults = '-';

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);)
    if (!line.empty()) lines.push_back(line);
  return lines;
}

/// Lines that a child answered. What it threw is the job's fault, its death is not.
std::vector<std::string> asked(const std::function<std::string()>& work, const char* what) {
  std::string answer;
  try {
    answer = answer_apart([&] {
      try {
        return kAnswer + work();
      } catch (const std::exception& e) {
        return kFaults + message_of(e);
      }
    });
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}", what, e.what()));
  }
  if (answer.starts_with(kFaults)) throw ConfigError(lines_of(answer.substr(1)));
  return lines_of(answer.substr(1));
}

/// How far layout a is from b, which was asked for.
double distance(const MeshOptions& a, const MeshOptions& b) {
  const auto apart = [](int x, int y) { return std::abs(std::log2(static_cast<double>(x) / y)); };
  return apart(a.mesh.tensor, b.mesh.tensor) + apart(a.mesh.pipeline, b.mesh.pipeline) +
         std::abs(a.zero - b.zero) / 2.0 +
         (a.mesh.pipeline > 1 && a.schedule != b.schedule ? 1 : 0);
}

/// The meshes of so many ranks, the nearest to the one asked for first. They have the schedule and
/// the ZeRO stage that were asked for, or the plainest ones.
std::vector<std::string> nearest_meshes(const ModelShape& shape, const MeshOptions& options,
                                        int ranks) {
  std::vector<std::pair<double, std::string>> all;
  const auto consider = [&](const Mesh& mesh, int zero, const std::string& schedule) {
    MeshOptions other = options;
    other.mesh = mesh;
    other.mesh.shards = zero > 0 ? mesh.data : 1;
    other.zero = zero;
    other.schedule = schedule;
    if (!splits_backward(schedule)) other.in_flight = 0;
    other.cut.clear();
    // Layouts that differ in what has no meaning on them (the schedule of one stage) have one name.
    const std::string name = layout_name(other);
    const bool known =
        std::any_of(all.begin(), all.end(), [&](const auto& one) { return one.second == name; });
    if (!known && mesh_faults(shape, other).empty())
      all.emplace_back(distance(other, options), name);
  };
  for (int tensor = 1; tensor <= std::min(ranks, shape.columns); ++tensor)
    for (int pipeline = 1; tensor * pipeline <= ranks && pipeline <= shape.layers(); ++pipeline) {
      if (ranks % (tensor * pipeline) != 0) continue;
      const Mesh mesh{ranks / (tensor * pipeline), tensor, pipeline, 1};
      for (int zero = mesh.data > 1 ? options.zero : 0; zero >= 0; --zero)
        for (const std::string& schedule : {options.schedule, plain_schedule()})
          consider(mesh, zero, schedule);
    }
  std::sort(all.begin(), all.end());
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min<size_t>(3, all.size()); ++i) names.push_back(all[i].second);
  return names;
}

/// Where offloaded values would go is looked at before any rank starts.
std::vector<std::string> tier_faults(const Job& job, const ModelShape& shape,
                                     const MeshOptions& options) {
  if (!options.offload_moments()) return {};
  const std::string& folder = job.layout.offload_folder;
  int64_t bytes = 0;
  for (const Program& program : plan_mesh(shape, options).programs)
    for (const Buffer& buffer : program.buffers) bytes += buffer.offloaded ? buffer.bytes : 0;
  try {
    if (bytes > 0) const FileTier tier(folder, bytes);
  } catch (const Error& e) {
    Job kept = job;
    kept.layout.offload = Offload::kNone;
    return {fmt::format(
        "layout.offload = \"{}\", layout.offload_folder = \"{}\": {}; another folder works, or "
        "offload = \"none\"{}",
        job.layout.offload, folder, e.what(), without_idle(kept))};
  }
  return {};
}

std::string mesh_answer(const Job& job, const MakeModel& make_model, bool fresh) {
  prepare_compute_thread(1);
  const Model model = prepared_model(job, make_model, fresh);
  const ModelShape shape = describe(model);
  const int slots = static_cast<int>(make_optimizer(job.train)->slots().size());
  MeshOptions options = mesh_options(job, shape, slots);
  std::vector<std::string> faults = mesh_faults(shape, options);
  if (faults.empty()) return fmt::format("{}", fmt::join(tier_faults(job, shape, options), "\n"));
  // A ZeRO stage that nobody asked for is not named.
  if (job.origin_of("layout.zero").kind == Origin::Kind::kResolved)
    options.zero = 0, options.mesh.shards = 1;
  for (std::string& fault : faults) fault = fmt::format("{}: {}", layout_name(options), fault);
  for (int ranks = static_cast<int>(job.layout.ranks); ranks > 0; --ranks)
    if (const auto nearest = nearest_meshes(shape, options, ranks); !nearest.empty()) {
      faults.push_back(
          fmt::format("with {} ranks these work: {}", ranks, fmt::join(nearest, "; ")));
      break;
    }
  return fmt::format("{}", fmt::join(faults, "\n"));
}

}  // namespace

TrainArguments with_planned_layout(TrainArguments arguments, const MakeModel& make_model) {
  if (!arguments.resume.empty()) {
    for (const Setting& setting : parse_settings(arguments.set, 0))
      if (setting.key == "layout.plan" &&
          parse_job("", "", {setting}).layout.plan == PlanKind::kAuto)
        throw ConfigError({fmt::format(
            "--set {}={} with --resume: a run that goes on keeps its layout, but for what is set; "
            "ask `tutti plan` and set what it names",
            setting.key, setting.value)});
    return arguments;
  }
  if (!arguments.job_text.empty()) return arguments;
  const Job asked_for = load_job(arguments.job, parse_settings(arguments.set, arguments.ranks));
  if (asked_for.layout.plan != PlanKind::kAuto) return arguments;
  PlanArguments plan;
  plan.job = arguments.job;
  plan.ranks = arguments.ranks;
  plan.set = arguments.set;
  plan.quick = true;
  const auto choose = [&] {
    const Job job = planned_job(plan, make_model);
    std::string text = fmt::format("layout.ranks={}\n", job.layout.ranks);
    for (const Key& key : keys()) {
      const bool planned = job.origin_of(key.full_name()).kind == Origin::Kind::kPlanned &&
                           key.get(job) != key.fallback;
      // Left out, an automatic key would be chosen once more, and perhaps otherwise.
      if (planned || (key.automatic && key.layout))
        text += fmt::format("{}={}\n", key.full_name(), value_text(key.get(job)));
    }
    return text;
  };
  for (std::string& setting : asked(choose, "layout.plan = \"auto\""))
    arguments.set.push_back(std::move(setting));
  arguments.ranks = 0;
  return arguments;
}

void refuse_bad_mesh(const Job& job, const MakeModel& make_model, bool fresh) {
  if (!model_may_refuse(job) || job.numerics.device != DeviceKind::kCpu) return;
  auto faults = asked([&] { return mesh_answer(job, make_model, fresh); }, "the layout");
  if (!faults.empty()) throw ConfigError(std::move(faults));
}

}  // namespace tutti
