// The search for layouts of a job: every mesh of N ranks with every ZeRO stage, schedule, recompute
// and fold, except what is given. Layouts are simulated (plan/search/simulate.h) and ranked by the
// seconds of a step. What cannot run, does not fit or has no chance is rejected with its reason.
// Lanes, micro-batches and columns are the job's and stay as they are.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "config/job.h"
#include "plan/make/plan_mesh.h"
#include "plan/search/cost.h"
#include "plan/search/simulate.h"

namespace tutti {

/// What a job leaves open: those layout keys with `.searched()` in their row (config/keys.cc) that
/// nobody set. They have their defaults, or what `auto` was resolved to.
struct SearchSpace {
  Job job{};
  /// Whether somebody set a key, which must be one that is searched.
  template <class T, class Owner>
  bool has(T Owner::*field) const {
    return is_given(&(job.layout.*field));
  }
  /// Whether a value may be tried: nobody gave one, or it is this.
  template <class T, class Owner>
  bool allows(T Owner::*field, const std::type_identity_t<T>& value) const {
    return !has(field) || job.layout.*field == value;
  }

 private:
  bool is_given(const void* field) const;
};
/// Turns all keys that are searched off, so that the job can be resolved without them.
void forget_layout(Job& job);

struct SearchRequest {
  /// The options that are not searched: batch, order, cut, overlap, depth, offload, parcels and the
  /// optimizer's slots.
  MeshOptions base;
  int ranks = 1;
  int64_t memory = 0;  ///< bytes that a rank may take at its peak; 0: there is no limit
  SearchSpace space;
  CostOptions cost;
  /// Why the job refuses a layout for reasons that the mesh does not know; "": it does not.
  std::function<std::string(const MeshOptions&)> refuse;
};

/// A layout and what it is predicted to do. Shares are of the step's seconds, as means over the
/// ranks; bytes are those of the rank that has most.
struct Candidate {
  MeshOptions options;
  double seconds = 0, bubble = 0, exposed = 0;
  MemoryForecast memory;
  double link[kAxes] = {};      ///< bytes that come over one link of the axis in a step
  double received[kAxes] = {};  ///< over all links
};

struct Rejection {
  std::string reason;
  std::vector<std::string> layouts;
};

struct SearchResult {
  /// All that were simulated and fit, the fastest first, except that the simplest of those that are
  /// as good as the fastest comes before them.
  std::vector<Candidate> best;
  /// Those that need more memory than there is, the smallest first; their seconds are 0.
  std::vector<Candidate> nearest;
  std::vector<Rejection> rejected;  ///< grouped by reason
  /// The most ranks that a job can use on each axis: a data rank has at least a lane, a tensor rank
  /// a column and a stage a block.
  int lanes = 1, columns = 1, blocks = 1;
};
/// What to say of a layout whose ranks have nothing to do for more than a fifth of the step: why,
/// and what mends it. "" if they are busier than that.
std::string idle_warning(const Candidate& candidate);
/// For people: reasons that differ only in their numbers become one, with the numbers of the first
/// layout that it names.
std::vector<Rejection> merged(const std::vector<Rejection>& rejected);
/// Searches the space. Of the layouts that are predicted to be within 2 % of the fastest, the
/// simplest comes first: no prediction is more exact than that.
SearchResult search_layouts(const ModelShape& model, const SearchRequest& request);

/// "data 2 x tensor 1 x pipeline 4, 1f1b, zero 1": only what is not the default is named.
std::string layout_name(const MeshOptions& options);
/// A candidate's programs and their simulation. They are those of all ranks or, if there are many,
/// of the ranks that stand for the others.
struct Rehearsal {
  std::vector<Program> programs;
  Simulation simulation;
};
/// If `by_role`, one rank per stage stands for all others of the stage.
Rehearsal rehearse(const ModelShape& model, const SearchRequest& request,
                   const MeshOptions& options, bool by_role);

/// The largest micro-batch with which a rank stays below `memory`, judged by those of its bytes
/// that grow with the micro-batch; 0: there is none.
int64_t largest_micro_batch(const MemoryForecast& now, int64_t micro_batch_size, int64_t memory);

/// Writes the candidate into the job's layout. Keys that change get the origin kPlanned.
void set_layout(Job& job, const MeshOptions& options);
/// For layout.plan = "auto": searches what is not given in the job, and sets it. The request's
/// space is taken from the job. Throws ConfigError when nothing can run or fit, naming the nearest.
Candidate choose_layout(Job& job, const ModelShape& model, SearchRequest request);
/// What choose_layout and `tutti plan` say when there is no layout.
std::vector<std::string> no_layout_faults(const SearchResult& result, const SearchRequest& request);

}  // namespace tutti
