// From form to meaning, stopping after the first stage with faults, since the next ones build on it: structure,
// meetings and circles (plan/check/ordering.h), conflicting accesses, values.
#include "plan/check/prove.h"

#include "base/error.h"
#include "plan/check/races.h"
#include "plan/check/structure.h"
#include "plan/check/values.h"

namespace tutti {

std::vector<std::string> check_mesh(const Plan& plan, const ModelShape& model, const MeshOptions& options) {
  std::vector<std::string> faults = check_mesh_structure(plan, model, options);
  if (!faults.empty()) return faults;
  const Ordering ordering(plan, faults);
  if (!faults.empty()) return faults;
  const Transfers transfers(plan, model, options);
  Copies copies;
  try {
    for (const auto& places : ordering.sequence()) {
      const Instruction& first = at(plan, places[0]);
      if (first.op == Op::kGather) copies.emplace(first.id, transfers.copy(first));
    }
  } catch (const Error& error) {
    return {error.what()};
  }
  const TouchedByAll touched = touched_by_all(plan);
  faults = check_mesh_races(plan, ordering, copies, touched);
  if (!faults.empty()) return faults;
  return check_mesh_values(plan, model, options, ordering, transfers, copies, touched);
}

}  // namespace tutti
