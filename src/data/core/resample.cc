// Turns data.resample into weights per record, from which an alias table draws the samples.
#include "data/core/resample.h"

#include <algorithm>

#include "base/error.h"

namespace tutti {
namespace {

// A table of weights has an entry per record; generated data has too many records for one.
constexpr int64_t kMostRecords = int64_t{1} << 31;

// The class of every record, which weights by class need.
std::vector<int64_t> labels_of(const Dataset& data, Resample resample) {
  std::vector<int64_t> labels(static_cast<size_t>(data.size()));
  for (size_t i = 0; i < labels.size(); ++i) {
    labels[i] = data.label(static_cast<int64_t>(i));
    if (labels[i] < 0)
      throw Error(fmt::format("data.resample = \"{}\": the records have no classes", resample));
  }
  return labels;
}

std::vector<double> weights_of(const Job& job, const Dataset& data) {
  const DataConfig& config = job.data;
  std::vector<double> weights(static_cast<size_t>(data.size()));
  if (config.resample == Resample::kColumn) {
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = data.weight(static_cast<int64_t>(i));
    return weights;
  }

  // "balanced" gives every class the same total: a record weighs 1 / the records of its class.
  const std::vector<int64_t> labels = labels_of(data, config.resample);
  std::vector<double> of_class = config.resample_weights;
  if (config.resample == Resample::kBalanced) {
    of_class.clear();
    for (int64_t label : labels) {
      if (static_cast<size_t>(label) >= of_class.size())
        of_class.resize(static_cast<size_t>(label) + 1);
      of_class[static_cast<size_t>(label)] += 1;
    }
    for (double& count : of_class) count = count > 0 ? 1 / count : 0;
  }

  // Every class that occurs needs a weight, and weights given by hand must fit the classes.
  const int64_t highest = labels.empty() ? 0 : *std::max_element(labels.begin(), labels.end());
  const auto given = static_cast<int64_t>(of_class.size());
  if (given <= highest)
    throw Error(fmt::format("data.resample_weights has {} weights, but a record is of class {}",
                            given, highest));
  if (given != highest + 1 && given != job.model.classes && config.resample == Resample::kClasses)
    throw Error(
        fmt::format("data.resample_weights has {} weights, but the highest class of a record is {}",
                    given, highest));
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = of_class[static_cast<size_t>(labels[i])];
  }
  return weights;
}

}  // namespace

Order make_order(const Job& job, const Dataset& data) {
  Order order{job.train.seed, static_cast<uint64_t>(data.size()), nullptr};
  if (job.data.resample == Resample::kNone) return order;
  if (data.size() > kMostRecords)
    throw Error(fmt::format("data.resample = \"{}\": {} records are too many to weigh",
                            job.data.resample, data.size()));
  order.weights = std::make_shared<const Alias>(weights_of(job, data));
  return order;
}

}  // namespace tutti
