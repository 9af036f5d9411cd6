// What the data must be for the model and the loss that read it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "config/job_check.h"
#include "config/table_columns.h"

namespace tutti {

namespace {

bool is_generated(const DataConfig& data) {
  return data.kind == "walk" || data.kind == "points" || data.kind == "clicks";
}

}  // namespace

void JobCheck::data() {
  const auto& data = job_.data;
  static const std::map<std::string, std::vector<std::string>> kReads = {
      {"gpt", {"text", "tokens", "walk", "jsonl"}},
      {"mlp", {"points", "csv", "jsonl", "idx", "numpy", "images"}},
      {"cnn", {"idx", "images", "numpy"}},
      {"wide-deep", {"clicks", "csv", "jsonl"}},
      {"autoencoder", {"idx", "numpy", "images", "points", "csv", "jsonl"}},
      {"script", {"idx", "images", "numpy", "points", "csv", "jsonl"}},
  };
  if (const auto reads = kReads.find(job_.model.kind); reads != kReads.end()) {
    const auto& kinds = reads->second;
    if (std::find(kinds.begin(), kinds.end(), data.kind) == kinds.end()) {
      fault({"data.kind", "model.kind"},
            fmt::format("data.kind = \"{}\" but model.kind = \"{}\": it reads \"{}\"", data.kind,
                        job_.model.kind, fmt::join(kinds, "\", \"")));
    }
  }
  if (!is_generated(data) && data.path.empty()) {
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
  if (job_.model.kind == "gpt" && (data.kind == "text" || data.kind == "jsonl") &&
      job_.model.vocab < 256) {
    fault({"model.vocab", "data.kind"},
          fmt::format("model.vocab = {} but data.kind = \"{}\": bytes need 256", job_.model.vocab,
                      data.kind));
  }
  if (data.tokenizer != "bytes" && data.kind != "text" && data.kind != "jsonl") {
    fault({"data.tokenizer", "data.kind"},
          fmt::format("data.tokenizer = \"{}\" but data.kind = \"{}\": it has no text",
                      data.tokenizer, data.kind));
  }
}

void JobCheck::split() {
  const auto& data = job_.data;
  const bool generated = is_generated(data);
  if (job_.train.eval_batches > 0 && data.held_out <= 0 && data.folds < 2) {
    const TrainConfig& train = job_.train;
    const bool watches = train.schedule == "plateau" || train.early_stop > 0 || train.keep_best;
    const std::string way =
        watches ? "set data.held_out: this job goes by its evaluations"
                : fmt::format("set train.eval_batches = 0{} for no evaluation",
                              train.eval_every > 0 ? " and train.eval_every = 0" : "");
    fault({"data.held_out", "train.eval_batches"},
          fmt::format(
              "data.held_out = 0 but train.eval_batches = {}: nothing is kept to evaluate on; {}",
              train.eval_batches, way));
  }
  if (data.held_out > 1 && data.held_out != std::floor(data.held_out)) {
    fault({"data.held_out"}, fmt::format("data.held_out = {}: below 1 it is a fraction of the "
                                         "records, from 1 on their number, which is "
                                         "whole",
                                         data.held_out));
  }
  if (data.folds > 1 && data.fold >= data.folds) {
    fault({"data.fold", "data.folds"},
          fmt::format("data.fold = {} but data.folds = {}", data.fold, data.folds));
  }
  if (data.folds > 1 && generated) {
    fault({"data.folds"},
          fmt::format("data.folds = {} but data.kind = \"{}\": there is no end to its records",
                      data.folds, data.kind));
  }
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
  const bool flat = job_.model.kind == "mlp" || job_.model.kind == "autoencoder";
  const bool images = data.kind == "idx" || data.kind == "images" || data.kind == "numpy";
  if (flat && image.size() == 3 && (data.kind == "images" || (images && job_.augment.any())) &&
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
  const bool table = data.kind == "csv" || data.kind == "jsonl";
  std::vector<std::string> texts;
  const ColumnSizes sizes = sizes_of(parse_columns(data.columns, texts));
  for (const std::string& text : texts) fault({"data.columns"}, text);
  if (!texts.empty()) return;
  if (data.resample == Resample::kColumn && !table) {
    fault({"data.resample", "data.kind"},
          fmt::format(
              "data.resample = \"column\" but data.kind = \"{}\": only csv and jsonl have columns",
              data.kind));
  } else if (data.resample == Resample::kColumn && sizes.weights != 1) {
    fault({"data.resample"}, "data.resample = \"column\" needs a column with the role weight");
  }
  if (table == data.columns.empty()) {
    return fault(
        {"data.columns", "data.kind"},
        table ? fmt::format("data.columns is empty but data.kind = \"{}\": say what is read",
                            data.kind)
              : fmt::format(
                    "data.columns is set but data.kind = \"{}\": only csv and jsonl have columns",
                    data.kind));
  }
  if (!table) return;
  const std::string& kind = job_.model.kind;
  if ((kind == "gpt") != (sizes.texts == 1) && kind != "custom") {
    return fault({"data.columns"}, kind == "gpt" ? "data.columns: a gpt reads one text column"
                                                 : "data.columns: only a gpt reads a text column");
  }
  if (kind != "gpt" && kind != "autoencoder" && kind != "custom" && sizes.targets == 0) {
    fault({"data.columns"}, "data.columns has no target");
  }
  if ((kind == "mlp" || kind == "autoencoder" || kind == "script") && !sizes.categories.empty()) {
    fault({"data.columns"}, fmt::format("data.columns has categories, which model.kind = \"{}\" "
                                        "does not read; make them one-hot, or use "
                                        "\"wide-deep\"",
                                        kind));
  }
  const bool classes = job_.loss.kind == "cross-entropy" || job_.loss.kind == "distill";
  const bool yes_or_no = job_.loss.kind == "bce" && sizes.classes == 2;  // as 1 or 0
  if (kind != "gpt" && kind != "autoencoder" && classes != (sizes.classes > 0) &&
      sizes.targets > 0 && !yes_or_no) {
    fault({"data.columns", "loss.kind"},
          fmt::format("loss.kind = \"{}\" but the target is {}", job_.loss.kind,
                      sizes.classes > 0 ? "a class" : "a number"));
  }
  const auto agrees = [&](const char* key, int64_t value, int64_t wanted) {
    if (wanted > 0 && value != wanted)
      fault({key, "data.columns"},
            fmt::format("{} = {} but data.columns has {}", key, value, wanted));
  };
  if (kind == "mlp" || kind == "autoencoder" || kind == "script")
    agrees("model.inputs", job_.model.inputs, sizes.numbers);
  if (classes) agrees("model.classes", job_.model.classes, sizes.classes);
  if (!classes && kind != "autoencoder" && kind != "gpt")
    agrees("model.outputs", job_.model.outputs, sizes.targets);
}

}  // namespace tutti
