// What the data must be for the model and the loss that read it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "config/check/job_check.h"
#include "config/check/table_columns.h"
#include "config/job_parts.h"
#include "config/model_rules.h"
#include "config/reserved_words.h"

namespace tutti {

namespace {

/// A model reads a format that can give one of its forms; a program's own model reads any.
bool reads(const ModelPart& model, const DataPart& data) {
  return model.foreign || model.reads.meet(data.gives);
}

/// Records are flat vectors here, whatever else the data could give.
bool reads_features(const Job& job) { return model_part(job).reads.features && !reads_images(job); }

/// Whether the records bring targets of their own, which a loss compares with what the model puts
/// out.
bool predicts(const ModelPart& model) { return !model.sequences && !model.reconstructs; }

/// The roles of the columns must be those that the model reads: one text, or features with a
/// target. False where a text and features are mistaken for each other: nothing else fits then.
bool check_roles(const Job& job, const ColumnSizes& sizes, const AddFault& fault) {
  const std::string& kind = job.model.kind;
  const ModelPart& model = model_part(job);
  if (model.sequences != (sizes.texts == 1) && !model.foreign) {
    const auto writers = names_where<ModelPart>(&ModelPart::sequences);
    fault(
        {"data.columns"},
        model.sequences
            ? fmt::format("data.columns: model.kind = \"{}\" reads one text column", kind)
            : fmt::format("data.columns: only {} reads a text column", quoted_list(writers, "or")));
    return false;
  }

  // Each of these can be missing or too much by itself, so both are told.
  if (predicts(model) && !model.foreign && sizes.targets == 0) {
    fault({"data.columns"}, "data.columns has no target");
  }
  if (reads_features(job) && !sizes.categories.empty()) {
    const auto embedding =
        names_where<ModelPart>([](const ModelPart& other) { return other.reads.fields; });
    fault({"data.columns"},
          fmt::format("data.columns has categories, which model.kind = \"{}\" does not read; make "
                      "them one-hot, or use {}",
                      kind, quoted_list(embedding, "or")));
  }
  return true;
}

/// The target must be what the loss compares: a class or a number.
void check_target(const Job& job, const ColumnSizes& sizes, const AddFault& fault) {
  const LossPart& loss = loss_part(job);
  const bool yes_or_no = loss.yes_or_no && sizes.classes == 2;  // as 1 or 0
  if (predicts(model_part(job)) && loss.classes != (sizes.classes > 0) && sizes.targets > 0 &&
      !yes_or_no) {
    fault({"data.columns", "loss.kind"},
          fmt::format("loss.kind = \"{}\" but the target is {}", job.loss.kind,
                      sizes.classes > 0 ? "a class" : "a number"));
  }
}

/// The sizes of the model must be those that the columns add up to.
void check_sizes(const Job& job, const ColumnSizes& sizes, const AddFault& fault) {
  const bool classes = loss_part(job).classes;
  const auto agrees = [&](const char* key, int64_t value, int64_t wanted) {
    if (wanted > 0 && value != wanted)
      fault({key, "data.columns"},
            fmt::format("{} = {} but data.columns has {}", key, value, wanted));
  };
  if (reads_features(job)) agrees("model.inputs", job.model.inputs, sizes.numbers);
  if (classes) agrees("model.classes", job.model.classes, sizes.classes);
  if (!classes && predicts(model_part(job)))
    agrees("model.outputs", job.model.outputs, sizes.targets);
}

}  // namespace

void JobCheck::data() {
  const auto& data = job_.data;
  const ModelPart& model = model_part(job_);
  if (!reads(model, data_part(job_))) {
    const auto kinds =
        names_where<DataPart>([&](const DataPart& other) { return reads(model, other); });
    fault({"data.kind", "model.kind"},
          fmt::format("data.kind = \"{}\" but model.kind = \"{}\": it reads {}", data.kind,
                      job_.model.kind, quoted_list(kinds, "and")));
  }
  if (!data_part(job_).generated && data.path.empty()) {
    fault({"data.path"},
          fmt::format("data.path is empty but data.kind = \"{}\": name a file", data.kind));
  }
  text();
  split();
  columns();
  images();
}

void JobCheck::text() {
  const auto& data = job_.data;
  const bool text = data_part(job_).text;
  if (model_part(job_).sequences && text && job_.model.vocab < 256) {
    fault({"model.vocab", "data.kind"},
          fmt::format("model.vocab = {} but data.kind = \"{}\": bytes need 256", job_.model.vocab,
                      data.kind));
  }
  if (!tokens_are_bytes(data) && !text) {
    fault({"data.tokenizer", "data.kind"},
          fmt::format("data.tokenizer = \"{}\" but data.kind = \"{}\": it has no text",
                      data.tokenizer, data.kind));
  }
}

void JobCheck::split() {
  const auto& data = job_.data;
  const bool generated = data_part(job_).generated;

  // An evaluation needs records of its own. Which way out is named depends on whether the job can
  // do without evaluations.
  if (job_.train.eval_batches > 0 && data.held_out <= 0 && data.folds < 2) {
    const TrainConfig& train = job_.train;
    const std::string way =
        goes_by_evaluations(job_)
            ? "set data.held_out: this job goes by its evaluations"
            : fmt::format("set train.eval_batches = 0{} for no evaluation",
                          train.eval_every > 0 ? " and train.eval_every = 0" : "");
    fault({"data.held_out", "train.eval_batches"},
          fmt::format(
              "data.held_out = 0 but train.eval_batches = {}: nothing is kept to evaluate on; {}",
              train.eval_batches, way));
  }

  // A number of records is whole, and a fold is one of those that there are.
  if (data.held_out > 1 && data.held_out != std::floor(data.held_out)) {
    fault({"data.held_out"}, fmt::format("data.held_out = {}: below 1 it is a fraction of the "
                                         "records, from 1 on their number, which is whole",
                                         data.held_out));
  }
  if (data.folds > 1 && data.fold >= data.folds) {
    fault({"data.fold", "data.folds"},
          fmt::format("data.fold = {} but data.folds = {}", data.fold, data.folds));
  }

  // Generated records have no end, so they cannot be dealt into folds; nor, below, drawn by weight.
  if (data.folds > 1 && generated) {
    fault({"data.folds"},
          fmt::format("data.folds = {} but data.kind = \"{}\": there is no end to its records",
                      data.folds, data.kind));
  }

  // Weights of the classes are given exactly where they are used.
  if ((data.resample == Resample::kClasses) != !data.resample_weights.empty()) {
    fault({"data.resample_weights", "data.resample"},
          data.resample_weights.empty()
              ? "data.resample = \"classes\" needs data.resample_weights"
              : "data.resample_weights needs data.resample = \"classes\"");
  }
  if (data.resample != Resample::kNone && generated) {
    fault(
        {"data.resample"},
        fmt::format("data.resample = \"{}\" but data.kind = \"{}\": there is no end to its records",
                    data.resample, data.kind));
  }
}

void JobCheck::images() {
  const auto& data = job_.data;
  const auto& image = job_.model.image;
  const DataPart& part = data_part(job_);
  const bool images = part.gives.images;
  if (reads_features(job_) && image.size() == 3 &&
      (part.decoded || (images && job_.augment.any())) &&
      image[0] * image[1] * image[2] != job_.model.inputs) {
    fault({"model.image", "model.inputs"},
          fmt::format("model.inputs = {} but model.image has {} x {} x {} values",
                      job_.model.inputs, image[0], image[1], image[2]));
  }
  if (job_.augment.any() && !images) {
    fault({"data.kind"},
          fmt::format("[augment] changes images, but data.kind = \"{}\"", data.kind));
  }
}

void JobCheck::columns() {
  const auto& data = job_.data;
  const bool table = data_part(job_).table;
  const std::string tables = quoted_list(names_where<DataPart>(&DataPart::table), "and");

  // The parser words the faults of single columns. Nothing else can be asked of columns that it
  // could not read.
  std::vector<std::string> texts;
  const ColumnSizes sizes = sizes_of(parse_columns(data.columns, texts));
  for (const std::string& text : texts) fault({"data.columns"}, text);
  if (!texts.empty()) return;

  // Only tables have columns; one of them may be the weight of the records.
  if (data.resample == Resample::kColumn && !table) {
    fault({"data.resample", "data.kind"},
          fmt::format("data.resample = \"column\" but data.kind = \"{}\": only {} have columns",
                      data.kind, tables));
  } else if (data.resample == Resample::kColumn && sizes.weights != 1) {
    fault({"data.resample"}, "data.resample = \"column\" needs a column with the role weight");
  }
  if (table == data.columns.empty()) {
    return fault(
        {"data.columns", "data.kind"},
        table ? fmt::format("data.columns is empty but data.kind = \"{}\": say what is read",
                            data.kind)
              : fmt::format("data.columns is set but data.kind = \"{}\": only {} have columns",
                            data.kind, tables));
  }
  if (!table) return;

  // What reads the columns is asked in this order: the model their roles, the loss the target, and
  // the model its sizes.
  const AddFault add = [this](std::initializer_list<const char*> keys, const std::string& text) {
    fault(keys, text);
  };
  if (!check_roles(job_, sizes, add)) return;
  check_target(job_, sizes, add);
  check_sizes(job_, sizes, add);
}

}  // namespace tutti
