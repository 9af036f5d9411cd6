// Between a job's [layout] and the search: which keys are given, and how a candidate is written
// back and named.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <map>

#include "base/bytes.h"
#include "base/error.h"
#include "grid/layout_name.h"
#include "plan/make/pipeline_schedule.h"
#include "plan/search/choose.h"

namespace tutti {

namespace {

constexpr const char* kRecomputes[] = {"none", "selective", "full"};

/// Whether somebody set a key: its value is neither the default nor resolved from `auto`.
bool given(const Job& job, const char* key) {
  const auto found = job.origin.find(std::string("layout.") + key);
  return found != job.origin.end() && found->second != "default" && found->second != "resolved";
}

Recompute recompute_of(const std::string& name) {
  return name == "full"        ? Recompute::kFull
         : name == "selective" ? Recompute::kSelective
                               : Recompute::kNone;
}

}  // namespace

SearchSpace given_layout(const Job& job) {
  const LayoutConfig& l = job.layout;
  SearchSpace space;

  // "auto" counts as not given even where somebody wrote it.
  if (given(job, "tensor")) space.tensor = static_cast<int>(l.tensor);
  if (given(job, "pipeline")) space.pipeline = static_cast<int>(l.pipeline);
  if (given(job, "zero") && l.zero != kAutomatic) space.zero = static_cast<int>(l.zero);
  if (given(job, "shards")) space.shards = static_cast<int>(l.shards);
  if (given(job, "chunks")) space.chunks = static_cast<int>(l.chunks);
  if (given(job, "in_flight")) space.in_flight = static_cast<int>(l.in_flight);
  if (given(job, "schedule")) space.schedule = l.schedule;
  if (given(job, "fold") && l.fold != "auto") space.fold = l.fold;
  if (given(job, "recompute")) space.recompute = recompute_of(l.recompute);
  return space;
}

void forget_layout(Job& job) {
  LayoutConfig& l = job.layout;
  l.tensor = l.pipeline = 1;
  l.zero = l.shards = 0;
  l.chunks = 2;
  l.in_flight = 0;
  l.schedule = "1f1b";
  l.fold = "auto";
  l.recompute = "none";

  // The origin goes back to the default, too, so that what depends on these keys can
  // be resolved again.
  for (const char* key : {"tensor", "pipeline", "zero", "shards", "chunks", "in_flight", "schedule",
                          "fold", "recompute"})
    job.origin[std::string("layout.") + key] = "default";
}

void set_layout(Job& job, const MeshOptions& o) {
  LayoutConfig& l = job.layout;

  // A value that stays as it is keeps its origin.
  const auto set = [&](const char* key, auto& field, const auto& value) {
    if (field == value) return;
    field = value;
    job.origin[std::string("layout.") + key] = "planned";
  };

  // Keys that mean nothing in this layout get their defaults: another job file would not
  // say them either.
  set("ranks", l.ranks, int64_t{o.mesh.ranks()});
  set("tensor", l.tensor, int64_t{o.mesh.tensor});
  set("pipeline", l.pipeline, int64_t{o.mesh.pipeline});
  set("zero", l.zero, int64_t{o.zero});
  set("shards", l.shards,
      o.zero == 0 || o.mesh.shards == o.mesh.data ? int64_t{0} : int64_t{o.mesh.shards});
  set("schedule", l.schedule, std::string(o.mesh.pipeline == 1 ? "1f1b" : o.schedule));
  set("chunks", l.chunks,
      o.mesh.pipeline > 1 && o.schedule == "interleaved" ? int64_t{o.chunks} : int64_t{2});
  set("in_flight", l.in_flight,
      o.mesh.pipeline > 1 && splits_backward(o.schedule) ? int64_t{o.in_flight} : int64_t{0});
  set("recompute", l.recompute, std::string(kRecomputes[static_cast<size_t>(o.recompute)]));
  set("fold", l.fold, std::string(o.root ? "root" : o.owner ? "owner" : "local"));
}

std::string layout_name(const MeshOptions& o) {
  Job job;
  set_layout(job, o);
  job.layout.depth = o.depth;
  job.layout.offload = !o.offload ? "none" : o.offload_parameters ? "all" : "optimizer";
  return layout_name(job.layout);
}

namespace {

/// The keys that are given, in words: "pipeline 8, schedule gpipe".
std::string set_text(const SearchSpace& space) {
  std::vector<std::string> all;
  const auto add = [&](const char* name, const auto& value) {
    if (value) all.push_back(fmt::format("{} {}", name, *value));
  };
  add("tensor", space.tensor), add("pipeline", space.pipeline), add("zero", space.zero),
      add("shards", space.shards);
  add("schedule", space.schedule), add("chunks", space.chunks);
  add("in_flight", space.in_flight), add("fold", space.fold);
  if (space.recompute)
    all.push_back(fmt::format("recompute {}", kRecomputes[static_cast<size_t>(*space.recompute)]));
  return fmt::format("{}", fmt::join(all, ", "));
}

}  // namespace

std::vector<Rejection> merged(const std::vector<Rejection>& rejected) {
  std::map<std::string, size_t> kinds;
  std::vector<Rejection> all;
  for (const Rejection& r : rejected) {
    // The reason without its digits names the kind.
    std::string kind;
    for (char c : r.reason)
      if (std::isdigit(static_cast<unsigned char>(c)) == 0) kind += c;
    const auto [it, fresh] = kinds.try_emplace(std::move(kind), all.size());
    if (fresh) {
      all.push_back(r);
    } else {
      auto& layouts = all[it->second].layouts;
      layouts.insert(layouts.end(), r.layouts.begin(), r.layouts.end());
    }
  }
  return all;
}

std::vector<std::string> no_layout_faults(const SearchResult& result,
                                          const SearchRequest& request) {
  std::vector<std::string> faults;

  // Memory is the reason if something could run but nothing fits: the three that need
  // least are named.
  if (!result.nearest.empty()) {
    faults.push_back(
        fmt::format("no layout of {} rank{} fits into {} a rank; the nearest:", request.ranks,
                    request.ranks == 1 ? "" : "s", bytes_text(request.memory)));
    for (size_t i = 0; i < std::min<size_t>(3, result.nearest.size()); ++i)
      faults.push_back(fmt::format("  {} needs {}", layout_name(result.nearest[i].options),
                                   bytes_text(result.nearest[i].memory.total())));
    return faults;
  }

  // Else nothing can run. What the user has set may be why, so it is repeated.
  const std::string set = set_text(request.space);
  faults.push_back(fmt::format(
      "no layout of {} rank{} can run this job{}:", request.ranks, request.ranks == 1 ? "" : "s",
      set.empty() ? "" : fmt::format(" with what is set ({}; left out, it is searched)", set)));

  // No layout was even listed: the given numbers do not divide the ranks.
  if (result.rejected.empty())
    faults.push_back(
        fmt::format("  tensor x pipeline ranks do not divide {} ranks, or shards their data ranks",
                    request.ranks));
  if (request.ranks > result.lanes * result.slices * result.blocks)
    faults.push_back(fmt::format(
        "  it has work for {} ranks at most: {} lanes x {} slices x {} blocks",
        result.lanes * result.slices * result.blocks, result.lanes, result.slices, result.blocks));
  for (const Rejection& r : merged(result.rejected))
    faults.push_back(
        fmt::format("  {} ({}{})", r.reason, r.layouts.front(),
                    r.layouts.size() > 1 ? fmt::format(" and {} more", r.layouts.size() - 1) : ""));
  return faults;
}

Candidate choose_layout(Job& job, const ModelShape& model, SearchRequest request) {
  request.space = given_layout(job);
  SearchResult result = search_layouts(model, request);
  if (result.best.empty()) throw ConfigError(no_layout_faults(result, request));
  set_layout(job, result.best.front().options);
  return std::move(result.best.front());
}

}  // namespace tutti
