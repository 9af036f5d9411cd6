// `tutti verify`: the promise, checked: one job over a set of layouts, one hash.
#pragma once

#include <string>
#include <vector>

#include "app/train_command.h"

namespace tutti {

/// Runs `steps` steps of the job on every layout of the set that its lanes allow; prints a table;
/// returns 0 when all hashes are equal.
int verify_command(const TrainArguments& arguments, int64_t steps, const MakeModel& make_model);

}  // namespace tutti
