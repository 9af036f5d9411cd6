// The sources that open_data opens, how their records are split, and what is known of the generated
// ones. Most code needs dataset.h alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/core/dataset.h"

namespace tutti {

/// Which records are trained on and which are held out: by key, data.held_out of them, or the fold
/// data.fold of data.folds. Throws Error naming `path` if a part that is needed has none, or if
/// more are asked for than there are.
struct Parts {
  std::vector<int64_t> train, held_out;
};
Parts split_records(const Job& job, int64_t records, const std::string& path);

/// What to say if `held` of all `records` are held out and data.held_out = `asked` let one expect
/// another number; "" if nothing. For a fraction a difference counts if it is more than a quarter
/// and more than one record; for a number every difference counts.
std::string held_out_notice(double asked, int64_t records, int64_t held);

/// Some records of a dataset, in the given order.
std::shared_ptr<const Dataset> pick(std::shared_ptr<const Dataset> source,
                                    std::vector<int64_t> records);

/// The file that data.path names: "kjv" and "fashion-mnist" are in the data folder ($TUTTI_DATA,
/// else ./data), other paths are taken as they are. Throws Error if the file that set-up installs
/// is missing.
std::string resolve_path(const std::string& path);

/// The file's bytes as a whole, so that a file that is truncated later cannot hurt a run. Throws
/// Error if it is missing, not a file, empty, or changed while it was read.
std::string read_unchanged(const std::string& path);
/// The same for a file that may be compressed by gzip. Throws Error if that is damaged or
/// ends early.
std::string read_gz(const std::string& path);

/// Text as records of `context` bytes with their targets.
std::shared_ptr<const Dataset> open_text(std::string bytes, const std::string& path,
                                         int64_t context, int64_t vocab);

/// Images or features with labels, as arrays (data/images/arrays.h).
Split open_idx(const Job& job, const DataGroup& group);
Split open_numpy(const Job& job, const DataGroup& group);
/// A folder of PNG and JPEG images with a folder for each class. Images of another size than
/// model.image are resized.
Split open_images(const Job& job, const DataGroup& group);

/// Generated records are a function of (seed, record), and there is no end to them: the first
/// kGenerated are for training, those from kGenerated on for evaluation.
inline constexpr int64_t kGenerated = int64_t{1} << 40;
std::shared_ptr<const Dataset> make_walk(uint64_t seed, int64_t context, int64_t vocab);
std::shared_ptr<const Dataset> make_points(uint64_t seed, int64_t inputs, int64_t classes);
/// A click has the kClickFields of config/job_parts.h.
std::shared_ptr<const Dataset> make_clicks(uint64_t seed);
/// The true probability of a click: what a perfect model would predict.
double clicks_truth(uint64_t seed, int64_t record);
/// The mean log loss of that prediction over the first held-out records. No model can expect less.
double clicks_truth_loss(uint64_t seed, int64_t held_out);

}  // namespace tutti
