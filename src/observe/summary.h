// The longer texts of a run's display, each made from one event of train/run.h. Fields that an
// event does not have are left out. Every text is whole lines, without the end of the last one.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tutti {

/// A number as "1.5 k" or "3.20 M".
std::string short_count(double n);
/// "1:02:03" or "2:03".
std::string short_duration(double seconds);

/// Of a data event: the records of every part, what was skipped and why, statistics and skew.
std::string data_text(const nlohmann::json& event);
/// Of an eval event: the held-out loss ("step 7   held-out loss 1.5000   accuracy 0.9100"), other
/// metrics, and what the loss is compared with.
std::string evaluation_text(const nlohmann::json& event);
/// Of a test event: a line "test accuracy 0.9234" (if there is one), a line "test loss 0.2210", and
/// the table of the rest.
std::string test_text(const nlohmann::json& event);
/// Of an end event: how the run ended, how fast and in how much memory; then where the time went,
/// and the share of the matmul limit. `steps` were taken, with `tokens_per_step` each; `unit`
/// names these.
std::string end_text(const nlohmann::json& event, int64_t steps, int64_t tokens_per_step,
                     const std::string& unit);

}  // namespace tutti
