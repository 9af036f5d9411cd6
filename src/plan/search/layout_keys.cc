// Leads from a job's [layout] to the search and back: which keys are given, and how a candidate is
// written into the job and named.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <map>

#include "base/bytes.h"
#include "base/error.h"
#include "config/schema.h"
#include "grid/layout_name.h"
#include "plan/make/pipeline_schedule.h"
#include "plan/search/choose.h"

namespace tutti {

namespace {

/// Whether somebody set a key: its value is neither the default nor resolved. "auto" counts as not
/// given even where somebody wrote it.
bool given(const Job& job, const Key& key) {
  const Origin::Kind from = job.origin_of(key.full_name()).kind;
  return from != Origin::Kind::kDefault && from != Origin::Kind::kResolved &&
         key.get(job) != Value(std::string("auto"));
}

/// The axes of a mesh as keys.
void set_mesh(LayoutConfig& layout, const Mesh& mesh) {
  layout.ranks = mesh.ranks(), layout.tensor = mesh.tensor, layout.pipeline = mesh.pipeline;
  layout.shards = mesh.shards == mesh.data ? 0 : mesh.shards;
}

}  // namespace

bool SearchSpace::is_given(const void* field) const {
  for (const Key& key : keys())
    if (key.searched && key.field(job) == field) return given(job, key);
  TUTTI_CHECK(false, "the search asks for a field that no row marks as searched");
}

void forget_layout(Job& job) {
  for (const Key& key : keys()) {
    if (!key.searched) continue;
    key.set(job, key.off);
    job.origin[key.full_name()] = {};
  }
}

void set_layout(Job& job, const MeshOptions& o) {
  // What the options say, as a layout of its own.
  Job planned = job;
  static_cast<PlanKeys&>(planned.layout) = o;
  set_mesh(planned.layout, o.mesh);

  // The job takes over the keys that the search chooses. A key that says nothing on this layout
  // keeps its default.
  const Key& ranks = key_named("layout.ranks");
  for (const Key& key : keys()) {
    if (!key.searched && &key != &ranks) continue;
    const bool idle = !key.idle_reason(planned).empty();
    const Value value = idle ? key.fallback : key.get(planned);
    if (value == key.get(job)) continue;
    key.set(job, value);
    job.origin[key.full_name()] = {Origin::Kind::kPlanned};
  }
}

std::string layout_name(const MeshOptions& o) {
  LayoutConfig layout;
  static_cast<PlanKeys&>(layout) = o;
  set_mesh(layout, o.mesh);
  return layout_name(layout);
}

namespace {

/// The keys that are given, in words: "pipeline 8, schedule gpipe".
std::string set_text(const SearchSpace& space) {
  std::vector<std::string> all;
  for (const Key& key : keys())
    if (key.searched && given(space.job, key))
      all.push_back(fmt::format("{} {}", key.name, plain_text(key.get(space.job))));
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
        fmt::format("no layout of {} rank{} fits into {} per rank; the nearest:", request.ranks,
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
  if (request.ranks > result.lanes * result.columns * result.blocks)
    faults.push_back(
        fmt::format("  it has work for {} ranks at most: {} lanes x {} columns x {} blocks",
                    result.lanes * result.columns * result.blocks, result.lanes, result.columns,
                    result.blocks));
  for (const Rejection& r : merged(result.rejected))
    faults.push_back(
        fmt::format("  {} ({}{})", r.reason, r.layouts.front(),
                    r.layouts.size() > 1 ? fmt::format(" and {} more", r.layouts.size() - 1) : ""));
  return faults;
}

Candidate choose_layout(Job& job, const ModelShape& model, SearchRequest request) {
  request.space = {job};
  SearchResult result = search_layouts(model, request);
  if (result.best.empty()) throw ConfigError(no_layout_faults(result, request));
  set_layout(job, result.best.front().options);
  return std::move(result.best.front());
}

}  // namespace tutti
