// Which tensors a job's data has. It is derived from the job alone, so models, datasets and
// evaluation agree on it without asking each other.
#include "model/core/data_borders.h"

#include "base/error.h"
#include "config/job_parts.h"

namespace tutti {

namespace {

// Of all kinds of data, only tables have columns that the job names and sizes.
ColumnSizes table_sizes(const Job& job) {
  std::vector<std::string> faults;
  const auto columns = parse_columns(job.data.columns, faults);
  if (!faults.empty()) throw ConfigError(std::move(faults));
  return sizes_of(columns);
}

// The features of a record. A table's columns must add up to what the model reads.
Border features(const Job& job) {
  if (data_part(job).table)
    if (const int64_t numbers = table_sizes(job).numbers; numbers != job.model.inputs)
      throw Error(fmt::format("model.inputs = {} but data.columns are {} numbers", job.model.inputs,
                              numbers));
  return {"features", {job.train.micro_batch_size, job.model.inputs}};
}

Border images(const Job& job) {
  const auto& image = job.model.image;
  if (image.size() != 3)
    throw Error(
        fmt::format("model.image has {} numbers; it is channels, height, width", image.size()));
  return {"images", {job.train.micro_batch_size, image[0], image[1], image[2]}};
}

// Numbers and categories apart.
void add_fields(const Job& job, std::vector<Border>& borders) {
  const ColumnSizes sizes = fields_of(job);
  const auto categories = static_cast<int64_t>(sizes.categories.size());
  borders.push_back({"numbers", {job.train.micro_batch_size, sizes.numbers}});
  borders.push_back({"categories", {job.train.micro_batch_size, categories}, at::kLong});
}

// Targets per token, per sample as a class, or per sample as values.
Border targets(const Job& job) {
  const int64_t samples = job.train.micro_batch_size;
  if (model_part(job).sequences) return {"targets", {samples, job.model.context}, at::kLong};
  if (targets_are_classes(job)) return {"targets", {samples}, at::kLong};
  return {"targets", {samples, job.model.outputs}};
}

}  // namespace

ColumnSizes fields_of(const Job& job) {
  if (data_part(job).table) return table_sizes(job);
  const GeneratedFields& fields = data_part(job).fields;
  ColumnSizes sizes;
  sizes.numbers = fields.numbers;
  sizes.categories.assign(static_cast<size_t>(fields.categories), fields.values);
  return sizes;
}

bool targets_are_classes(const Job& job) {
  const ModelPart& model = model_part(job);
  return model.sequences || model.reconstructs || is_open(job.loss.kind) || loss_part(job).classes;
}

std::vector<Border> data_borders(const Job& job) {
  std::vector<Border> borders;

  // The model's inputs come first, in the order in which it names them.
  const Forms& reads = model_part(job).reads;
  if (reads.tokens)
    borders.push_back({"tokens", {job.train.micro_batch_size, job.model.context}, at::kLong});
  else if (reads_images(job))
    borders.push_back(images(job));
  else if (reads.features)
    borders.push_back(features(job));
  else if (reads.fields)
    add_fields(job, borders);
  else
    throw Error(fmt::format("model.kind = \"{}\" has no data that is known here", job.model.kind));
  borders.push_back(targets(job));

  // Mixup adds a second set of targets and each sample's weight of them.
  if (job.augment.mixup > 0) {
    Border other = borders.back();
    other.name = "other_targets";
    borders.push_back(std::move(other));
    borders.push_back({"mix", {job.train.micro_batch_size}});
  }
  return borders;
}

}  // namespace tutti
