// The records behind open_data, before the split.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/core/dataset.h"

namespace tutti {

/// Which records are trained on and which are held out: by key, data.held_out of them, or the fold
/// data.fold of data.folds. Throws Error naming `path` when a part that is needed has none, or more
/// are asked for than there are.
struct Parts {
  std::vector<int64_t> train, held_out;
};
Parts split_records(const Job& job, int64_t records, const std::string& path);

/// What to say where `held` of all `records` are held out and data.held_out = `asked` let one
/// expect another number: for a fraction more than a quarter of it, and more than one record, away;
/// for a number any other. "": nothing.
std::string held_out_notice(double asked, int64_t records, int64_t held);

/// Some records of a dataset, in the given order.
std::shared_ptr<const Dataset> pick(std::shared_ptr<const Dataset> source,
                                    std::vector<int64_t> records);

/// Where data.path points: "kjv" and "fashion-mnist" lie in the data folder ($TUTTI_DATA, else
/// ./data). Throws Error when the file that set-up installs is missing.
std::string resolve_path(const std::string& path);

/// The file's bytes, whole: one that is truncated later cannot hurt a run. Throws Error: missing,
/// not a file, empty, changed while it was read.
std::string read_unchanged(const std::string& path);
/// The same for a file that may be compressed by gzip; throws Error for one that is damaged or ends
/// early.
std::string read_gz(const std::string& path);

std::shared_ptr<const Dataset> open_text(std::string bytes, const std::string& path,
                                         int64_t context, int64_t vocab);

/// idx and numpy: images or features with labels (data/images/arrays.h).
Split open_arrays(const Job& job, const DataGroup& group);
/// A folder of PNG and JPEG images, a folder for each class; images of another size than
/// model.image are resized.
Split open_images(const Job& job, const DataGroup& group);

/// Generated records are a function of (seed, record) and there is no end to them: kGenerated of
/// them are for training, those from kGenerated on for evaluation.
inline constexpr int64_t kGenerated = int64_t{1} << 40;
std::shared_ptr<const Dataset> make_walk(uint64_t seed, int64_t context, int64_t vocab);
std::shared_ptr<const Dataset> make_points(uint64_t seed, int64_t inputs, int64_t classes);
std::shared_ptr<const Dataset> make_clicks(uint64_t seed);
/// The true probability of a click: what a perfect model would predict.
double clicks_truth(uint64_t seed, int64_t record);
/// Its mean log loss over the first held-out records: no model can expect less.
double clicks_truth_loss(uint64_t seed, int64_t held_out);

}  // namespace tutti
