// The proof goes from form to meaning: structure, meetings and circles (plan/check/ordering.h),
// transfers, conflicting accesses, values. It stops after the first of these with faults, since the
// next ones build on it.
#include "plan/check/prove.h"

#include "plan/check/check_transfers.h"
#include "plan/check/races.h"
#include "plan/check/structure.h"
#include "plan/check/values.h"

namespace tutti {

std::vector<std::string> prove(const Plan& plan, const ModelShape& model) {
  std::vector<std::string> faults = check_structure(plan, model);
  if (!faults.empty()) return faults;
  const Ordering ordering(plan, faults);
  if (faults.empty()) faults = check_transfers(plan, model, ordering);
  if (!faults.empty()) return faults;
  const TouchedByAll touched = touched_by_all(plan);
  faults = check_races(plan, ordering, touched);
  return faults.empty() ? check_values(plan, model, ordering, touched) : faults;
}

}  // namespace tutti
