// The records behind open_data, before the split.
#pragma once

#include <memory>
#include <string>

#include "data/dataset.h"

namespace tutti {

/// The file is read into memory whole: one that is truncated later cannot hurt a run.
std::shared_ptr<const Dataset> open_text(const std::string& path, int64_t context, int64_t vocab);

/// Where data.path points: "kjv" lies in the data folder.
std::string resolve_text_path(const std::string& path);

/// Generated records are a function of (seed, record) and there is no end to them: kGenerated of them are for training,
/// those from kGenerated on for evaluation.
inline constexpr int64_t kGenerated = int64_t{1} << 40;
std::shared_ptr<const Dataset> make_walk(uint64_t seed, int64_t context, int64_t vocab);
std::shared_ptr<const Dataset> make_points(uint64_t seed, int64_t inputs, int64_t classes);

}  // namespace tutti
