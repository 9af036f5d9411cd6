// What `tutti plan --json` writes: every layout that was simulated, for programs.
#pragma once

#include <string>

#include "config/job.h"
#include "plan/search/choose.h"

namespace tutti {

/// {"layouts": [{"name", "layout": {key: value}, "seconds", "bubble", "exposed", "bytes",
/// "link_bytes": {axis: bytes}}], "rejected": [{"reason", "layouts": [name]}]}, layouts in the
/// search's order; `layout` has the keys that are searched. `job` is the job as it is without a
/// chosen layout.
std::string layouts_json(const Job& job, const SearchResult& result);

}  // namespace tutti
