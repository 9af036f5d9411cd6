// Both need the model, and so ATen, which must not have run in the process that forks the ranks: a child finds out.
#include "app/layout_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "app/plan_command.h"
#include "base/error.h"
#include "config/schema.h"
#include "config/value.h"
#include "device/child.h"
#include "plan/search.h"
#include "tensor/threads.h"
#include "train/mesh_rank.h"
#include "train/prepare.h"

namespace tutti {

namespace {

constexpr double kPatience = 300;  // seconds

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);)
    if (!line.empty()) lines.push_back(line);
  return lines;
}

/// Lines that a child answered.
std::vector<std::string> asked(FunctionRef<std::string()> work, const char* what) {
  const ChildAnswer answer = in_child(work, kPatience);
  if (answer.ok()) return lines_of(answer.text);
  if (answer.end == ChildAnswer::End::kThrew) throw ConfigError(lines_of(answer.text));
  throw Error(fmt::format("{}: {}", what, answer.text));
}

/// How far two meshes are from each other.
double distance(const Mesh& a, const Mesh& b) {
  const auto apart = [](int x, int y) { return std::abs(std::log2(static_cast<double>(x) / y)); };
  return apart(a.tensor, b.tensor) + apart(a.pipeline, b.pipeline);
}

std::vector<std::string> nearest_meshes(const ModelShape& shape, const MeshOptions& options, int ranks) {
  std::vector<std::pair<double, std::string>> all;
  for (int tensor = 1; tensor <= ranks; ++tensor)
    for (int pipeline = 1; tensor * pipeline <= ranks; ++pipeline) {
      if (ranks % (tensor * pipeline) != 0) continue;
      MeshOptions other = options;
      other.mesh = {ranks / (tensor * pipeline), tensor, pipeline, 1};
      if (options.zero > 0) other.mesh.shards = other.mesh.data;
      other.cut.clear();
      if (mesh_faults(shape, other).empty()) all.emplace_back(distance(other.mesh, options.mesh), layout_name(other));
    }
  std::sort(all.begin(), all.end());
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min<size_t>(3, all.size()); ++i) names.push_back(all[i].second);
  return names;
}

std::string mesh_answer(const Job& job, const MakeModel& make_model, bool fresh) {
  prepare_compute_thread(static_cast<int>(job.numerics.threads));
  const Model model = prepared_model(job, make_model, fresh);
  const ModelShape shape = describe(model);
  const int slots = static_cast<int>(make_optimizer(job.train, job.numerics.isa)->slots().size());
  const MeshOptions options = mesh_options(job, shape, slots);
  std::vector<std::string> faults = mesh_faults(shape, options);
  if (faults.empty()) return "";
  const auto nearest = nearest_meshes(shape, options, static_cast<int>(job.layout.ranks));
  if (!nearest.empty())
    faults.push_back(fmt::format("with {} ranks these work: {}", job.layout.ranks, fmt::join(nearest, "; ")));
  return fmt::format("{}", fmt::join(faults, "\n"));
}

}  // namespace

TrainArguments with_planned_layout(TrainArguments arguments, const MakeModel& make_model) {
  if (!arguments.resume.empty()) {
    for (const std::string& setting : arguments.set)
      if (setting.starts_with("layout.plan=") && setting.find("auto") != std::string::npos)
        throw ConfigError(
            {fmt::format("--set {} with --resume: a run that goes on keeps its layout, but for what is set; "
                         "ask `tutti plan` and set what it names",
                         setting)});
    return arguments;
  }
  if (!arguments.job_text.empty()) return arguments;
  const Job asked_for = load_job(arguments.job, parse_settings(arguments.set, arguments.ranks));
  if (asked_for.layout.plan != "auto") return arguments;
  PlanArguments plan;
  plan.job = arguments.job;
  plan.ranks = arguments.ranks;
  plan.set = arguments.set;
  plan.quick = true;
  const auto choose = [&] {
    const Job job = planned_job(plan, make_model);
    std::string text = fmt::format("layout.ranks={}\n", job.layout.ranks);
    for (const Key& key : keys())
      if (const auto origin = job.origin.find(key.full_name());
          origin != job.origin.end() && origin->second == "planned" && key.get(job) != key.fallback)
        text += fmt::format("{}={}\n", key.full_name(), value_text(key.get(job)));
    return text;
  };
  for (std::string& setting : asked(choose, "layout.plan = \"auto\"")) arguments.set.push_back(std::move(setting));
  arguments.ranks = 0;
  return arguments;
}

void refuse_bad_mesh(const Job& job, const MakeModel& make_model, bool fresh) {
  if (!needs_mesh(job) || job.numerics.device != "cpu") return;
  auto faults = asked([&] { return mesh_answer(job, make_model, fresh); }, "the layout");
  if (!faults.empty()) throw ConfigError(std::move(faults));
}

}  // namespace tutti
