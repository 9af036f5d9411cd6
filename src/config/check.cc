// What needs more than one value of a job to be judged. Every fault is collected.
#include "config/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "config/columns.h"
#include "config/groups.h"
#include "config/schema.h"

namespace tutti {

namespace {

class Check {
 public:
  explicit Check(const Job& job) : job_(job) {}

  /// A fault that names its keys; the first that came from a line of a file gives the place.
  void fault(std::initializer_list<const char*> names, const std::string& text) {
    for (const char* name : names) {
      const auto origin = job_.origin.find(name);
      if (origin == job_.origin.end() || origin->second.find(':') == std::string::npos) continue;
      return faults.push_back(origin->second + ": " + text);
    }
    faults.push_back(text);
  }

  void values();
  void gpt();
  void model();
  void loss();
  void data();
  void columns();
  void train();
  void numerics(const Machine& machine);
  void layout();

  std::vector<std::string> faults;

 private:
  void one_of(const char* key, const std::string& value, const std::vector<std::string>& allowed);
  const Job& job_;
};

// A C++ program may have set any field to anything.
void Check::values() {
  for (const auto& key : keys()) {
    if (const std::string text = fault_of(key, key.get(job_)); !text.empty()) fault({key.full_name().c_str()}, text);
  }
}

void Check::one_of(const char* key, const std::string& value, const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
  fault({key, "model.kind"}, fmt::format("{} = \"{}\" but model.kind = \"{}\": it takes \"{}\"", key, value,
                                         job_.model.kind, fmt::join(allowed, "\", \"")));
}

void Check::gpt() {
  const auto& model = job_.model;
  if (model.heads > 0 && model.width % model.heads != 0) {
    fault({"model.width", "model.heads"},
          fmt::format("model.width = {} cannot be cut into model.heads = {}: a head is a whole number of elements",
                      model.width, model.heads));
  } else if (model.positions == "rotary" && model.width / model.heads % 2 != 0) {
    fault({"model.positions", "model.heads"},
          fmt::format("model.positions = \"rotary\" but a head has {} elements: it turns pairs of them",
                      model.width / model.heads));
  }
  if (model.kv_heads > 0 && model.heads % model.kv_heads != 0) {
    fault({"model.kv_heads", "model.heads"},
          fmt::format("model.heads = {} cannot be shared out over model.kv_heads = {}", model.heads, model.kv_heads));
  }
}

void Check::model() {
  const auto& model = job_.model;
  const std::string& kind = model.kind;
  if (kind == "gpt") gpt();
  if (kind != "gpt" && kind != "custom") {
    if (model.tied) {
      fault({"model.tied"},
            fmt::format("model.tied = true but model.kind = \"{}\": it has no embedding to tie its head to", kind));
    }
    if (model.activation == "swiglu") {
      fault({"model.activation"}, fmt::format("model.activation = \"swiglu\" but model.kind = \"{}\": it is the gated "
                                              "layer of a gpt",
                                              kind));
    }
  }
  if (kind == "gpt") one_of("model.norm", model.norm, {"layer", "rms"});
  if (kind == "cnn") one_of("model.norm", model.norm, {"batch", "group", "layer", "none"});
  if (kind == "mlp") one_of("model.norm", model.norm, {"none", "layer", "rms", "batch"});
  if (kind == "wide-deep" || kind == "autoencoder") one_of("model.norm", model.norm, {"none", "layer", "rms", "batch"});
  if (model.image.size() != 3) {
    fault({"model.image"}, "model.image must have three values: channels, height and width");
  } else if (job_.data.kind == "images" && model.image[0] != 1 && model.image[0] != 3) {
    fault({"model.image"},
          fmt::format("model.image has {} channels: PNG and JPEG are read as 1 (grey) or 3 (colour)", model.image[0]));
  }
  if (kind == "cnn" && model.channels.empty()) fault({"model.channels"}, "model.channels is empty: a cnn has a stage");
  if (kind == "script" && model.path.empty()) {
    fault({"model.path"}, "model.path is empty but model.kind = \"script\": name a TorchScript file");
  }
}

void Check::loss() {
  const auto& loss = job_.loss;
  const std::string& kind = job_.model.kind;
  const bool classes = loss.kind == "cross-entropy" || loss.kind == "distill";
  if (kind == "gpt" || kind == "cnn") one_of("loss.kind", loss.kind, {"cross-entropy", "distill"});
  if (kind == "wide-deep") one_of("loss.kind", loss.kind, {"bce", "mse", "mae", "huber"});
  if (kind == "autoencoder") one_of("loss.kind", loss.kind, {"mse", "bce"});
  if (!classes && (loss.label_smoothing > 0 || !loss.class_weights.empty())) {
    fault({"loss.label_smoothing", "loss.class_weights", "loss.kind"},
          fmt::format("loss.label_smoothing and loss.class_weights are of \"cross-entropy\", but loss.kind = \"{}\"",
                      loss.kind));
  }
  const bool only_classes = job_.data.kind == "points" || job_.data.kind == "images";
  if (!classes && only_classes && (kind == "mlp" || kind == "script")) {
    fault({"loss.kind", "data.kind"},
          fmt::format("loss.kind = \"{}\" but data.kind = \"{}\": its targets are classes; use \"cross-entropy\"",
                      loss.kind, job_.data.kind));
  }
  const int64_t many = kind == "gpt" ? job_.model.vocab : job_.model.classes;
  if (!loss.class_weights.empty() && static_cast<int64_t>(loss.class_weights.size()) != many) {
    fault({"loss.class_weights"},
          fmt::format("loss.class_weights has {} weights for {} classes", loss.class_weights.size(), many));
  }
  if ((loss.kind == "distill") != !loss.teacher.empty()) {
    fault({"loss.teacher", "loss.kind"}, loss.teacher.empty()
                                             ? "loss.kind = \"distill\" but loss.teacher is empty: name a run"
                                             : "loss.teacher is set but loss.kind is not \"distill\"");
  }
  if (job_.augment.mixup > 0 && (!classes || kind == "gpt")) {
    fault({"augment.mixup", "loss.kind"}, "augment.mixup mixes classes of images; this job has none");
  }
}

void Check::data() {
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
      fault({"data.kind", "model.kind"}, fmt::format("data.kind = \"{}\" but model.kind = \"{}\": it reads \"{}\"",
                                                     data.kind, job_.model.kind, fmt::join(kinds, "\", \"")));
    }
  }
  const bool bytes = data.kind == "text" && data.tokenizer == "bytes";
  if (job_.model.kind == "gpt" && (data.kind == "text" || data.kind == "jsonl") && job_.model.vocab < 256) {
    fault({"model.vocab", "data.kind"},
          fmt::format("model.vocab = {} but data.kind = \"{}\": bytes need 256", job_.model.vocab, data.kind));
  }
  if (!bytes && data.tokenizer != "bytes" && data.kind != "text" && data.kind != "jsonl") {
    fault({"data.tokenizer", "data.kind"},
          fmt::format("data.tokenizer = \"{}\" but data.kind = \"{}\": it has no text", data.tokenizer, data.kind));
  }
  const bool generated = data.kind == "walk" || data.kind == "points" || data.kind == "clicks";
  if (!generated && data.path.empty()) {
    fault({"data.path"}, fmt::format("data.path is empty but data.kind = \"{}\": name a file", data.kind));
  }
  if (job_.train.eval_batches > 0 && data.held_out <= 0 && data.folds < 2) {
    fault({"data.held_out", "train.eval_batches"},
          fmt::format("data.held_out = 0 but train.eval_batches = {}: nothing is kept to evaluate on; set "
                      "train.eval_batches = 0 for no evaluation",
                      job_.train.eval_batches));
  }
  if (data.folds > 1 && data.fold >= data.folds) {
    fault({"data.fold", "data.folds"}, fmt::format("data.fold = {} but data.folds = {}", data.fold, data.folds));
  }
  if (data.folds > 1 && generated) {
    fault({"data.folds"},
          fmt::format("data.folds = {} but data.kind = \"{}\": there is no end to its records", data.folds, data.kind));
  }
  if ((data.resample == "classes") != !data.resample_weights.empty()) {
    fault({"data.resample_weights", "data.resample"}, data.resample_weights.empty()
                                                          ? "data.resample = \"classes\" needs data.resample_weights"
                                                          : "data.resample_weights needs data.resample = \"classes\"");
  }
  if (data.resample != "none" && generated) {
    fault({"data.resample"},
          fmt::format("data.resample = \"{}\" but data.kind = \"{}\": there is no end to its records", data.resample,
                      data.kind));
  }
  columns();
  const auto& image = job_.model.image;
  const bool flat = job_.model.kind == "mlp" || job_.model.kind == "autoencoder";
  const bool images = data.kind == "idx" || data.kind == "images" || data.kind == "numpy";
  if (flat && image.size() == 3 && (data.kind == "images" || (images && job_.augment.any())) &&
      image[0] * image[1] * image[2] != job_.model.inputs) {
    fault({"model.image", "model.inputs"}, fmt::format("model.inputs = {} but model.image has {} x {} x {} values",
                                                       job_.model.inputs, image[0], image[1], image[2]));
  }
  if (job_.augment.any() && !images) {
    fault({"data.kind"}, fmt::format("[augment] changes images, but data.kind = \"{}\"", data.kind));
  }
}

void Check::columns() {
  const auto& data = job_.data;
  const bool table = data.kind == "csv" || data.kind == "jsonl";
  std::vector<std::string> texts;
  const ColumnSizes sizes = sizes_of(parse_columns(data.columns, texts));
  for (const std::string& text : texts) fault({"data.columns"}, text);
  if (!texts.empty()) return;
  if (table == data.columns.empty()) {
    return fault(
        {"data.columns", "data.kind"},
        table ? fmt::format("data.columns is empty but data.kind = \"{}\": say what is read", data.kind)
              : fmt::format("data.columns is set but data.kind = \"{}\": only csv and jsonl have columns", data.kind));
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
    fault({"data.columns"},
          fmt::format("data.columns has categories, which model.kind = \"{}\" does not read; make them one-hot, or use "
                      "\"wide-deep\"",
                      kind));
  }
  const bool classes = job_.loss.kind == "cross-entropy" || job_.loss.kind == "distill";
  const bool yes_or_no = job_.loss.kind == "bce" && sizes.classes == 2;  // as 1 or 0
  if (kind != "gpt" && kind != "autoencoder" && classes != (sizes.classes > 0) && sizes.targets > 0 && !yes_or_no) {
    fault({"data.columns", "loss.kind"}, fmt::format("loss.kind = \"{}\" but the target is {}", job_.loss.kind,
                                                     sizes.classes > 0 ? "a class" : "a number"));
  }
  const auto agrees = [&](const char* key, int64_t value, int64_t wanted) {
    if (wanted > 0 && value != wanted)
      fault({key, "data.columns"}, fmt::format("{} = {} but data.columns has {}", key, value, wanted));
  };
  if (kind == "mlp" || kind == "autoencoder" || kind == "script")
    agrees("model.inputs", job_.model.inputs, sizes.numbers);
  if (classes) agrees("model.classes", job_.model.classes, sizes.classes);
  if (!classes && kind != "autoencoder" && kind != "gpt") agrees("model.outputs", job_.model.outputs, sizes.targets);
  if (data.resample == "column" && sizes.weights != 1) {
    fault({"data.resample"}, "data.resample = \"column\" needs a column with the role weight");
  }
}

void Check::train() {
  const auto& train = job_.train;
  if (train.eval_every > 0 && train.eval_batches == 0) {
    fault(
        {"train.eval_every", "train.eval_batches"},
        fmt::format("train.eval_every = {} but train.eval_batches = 0: nothing would be evaluated", train.eval_every));
  }
  if (train.optimizer != "sgd" && (train.nesterov || (train.momentum != 0 && train.optimizer != "rmsprop"))) {
    fault(
        {"train.momentum", "train.nesterov", "train.optimizer"},
        fmt::format("train.momentum and train.nesterov are of \"sgd\", but train.optimizer = \"{}\"", train.optimizer));
  } else if (train.nesterov && train.momentum == 0) {
    fault({"train.nesterov"}, "train.nesterov = true but train.momentum = 0: there is no momentum to look ahead by");
  }
  const bool watches = train.schedule == "plateau" || train.early_stop > 0 || train.keep_best;
  if (watches && train.eval_every == 0) {
    fault({"train.schedule", "train.early_stop", "train.keep_best", "train.eval_every"},
          fmt::format("{} goes by evaluations, but train.eval_every = 0", train.schedule == "plateau"
                                                                              ? "train.schedule = \"plateau\""
                                                                          : train.early_stop > 0 ? "train.early_stop"
                                                                                                 : "train.keep_best"));
  }
  std::vector<std::string> texts;
  parse_groups(train.groups, texts);
  for (const std::string& text : texts) fault({"train.groups"}, text);
  if (train.sample_bytes > 0 && job_.model.kind != "gpt" && job_.model.kind != "custom") {
    fault({"train.sample_bytes"}, fmt::format("train.sample_bytes = {} but model.kind = \"{}\": it writes no text",
                                              train.sample_bytes, job_.model.kind));
  } else if (train.sample_bytes > 0 && train.prompt.empty()) {
    fault({"train.sample_bytes"},
          fmt::format("train.sample_bytes = {} but train.prompt is empty: a sample starts from a prompt",
                      train.sample_bytes));
  }
  if (train.tensor_slices > 1 && job_.model.kind == "gpt" && job_.model.heads % train.tensor_slices != 0) {
    fault({"train.tensor_slices", "model.heads"},
          fmt::format("model.heads = {} cannot be cut into train.tensor_slices = {}", job_.model.heads,
                      train.tensor_slices));
  }
  const double samples = static_cast<double>(train.lanes) * static_cast<double>(train.micro_batches) *
                         static_cast<double>(train.micro_batch_size) * static_cast<double>(train.steps);
  if (samples > 1e18) {
    fault({"train.steps", "train.lanes", "train.micro_batches", "train.micro_batch_size"},
          fmt::format("train.steps = {} of {} x {} x {} samples are more than can be counted", train.steps, train.lanes,
                      train.micro_batches, train.micro_batch_size));
  }
}

void Check::numerics(const Machine& machine) {
  const std::string& isa = job_.numerics.isa;
  if (!machine.avx2 && !machine.avx512) {
    fault({"numerics.isa"}, "numerics.isa: this processor has neither AVX2 nor AVX-512; one of them is needed");
  } else if (isa == "avx512" && !machine.avx512) {
    fault({"numerics.isa"}, "numerics.isa = \"avx512\" but this processor has no AVX-512 (f, bw, cd, dq, vl)");
  }
  if (job_.numerics.reduce == "ring" && job_.layout.fold == "root") {
    fault({"numerics.reduce", "layout.fold"},
          "layout.fold = \"root\" but numerics.reduce = \"ring\": a ring has no root that folds the tree");
  }
}

void Check::layout() {
  const auto& layout = job_.layout;
  const auto& train = job_.train;
  if (layout.ranks > train.lanes) {
    fault({"layout.ranks", "train.lanes"},
          fmt::format(
              "layout.ranks = {} but train.lanes = {}: a rank owns at least one lane; ask for at most {} ranks, or "
              "for more lanes, which is another job",
              layout.ranks, train.lanes, train.lanes));
  }
  if (layout.hosts > layout.ranks) {
    fault({"layout.hosts", "layout.ranks"},
          fmt::format("layout.hosts = {} but layout.ranks = {}: a host has at least one rank", layout.hosts,
                      layout.ranks));
  }
  if (layout.transport == "inproc" && layout.workers == "process") {
    fault({"layout.transport", "layout.workers"},
          "layout.transport = \"inproc\" but layout.workers = \"process\": inproc reaches only threads of one process; "
          "use "
          "\"shm\" or \"tcp\"");
  }
  if (layout.transport == "shm" && layout.workers == "thread") {
    fault(
        {"layout.transport", "layout.workers"},
        "layout.transport = \"shm\" but layout.workers = \"thread\": threads share all their memory; use \"inproc\" or "
        "\"tcp\"");
  }
  if (layout.tensor > train.tensor_slices) {
    fault({"layout.tensor", "train.tensor_slices"},
          fmt::format("layout.tensor = {} but train.tensor_slices = {}: a rank owns at least one slice", layout.tensor,
                      train.tensor_slices));
  }
  const int64_t shares = layout.tensor * layout.pipeline;
  if (shares > 0 && layout.ranks % shares != 0) {
    fault(
        {"layout.ranks", "layout.tensor", "layout.pipeline"},
        fmt::format("layout.ranks = {} is no multiple of layout.tensor x layout.pipeline = {}", layout.ranks, shares));
  }
  if (layout.fold == "owner" && train.micro_batches > 1 && job_.numerics.order != "micro") {
    fault({"layout.fold", "train.micro_batches"},
          "layout.fold = \"owner\" needs train.micro_batches = 1 or numerics.order = \"micro\"");
  }
  if (layout.address.empty()) fault({"layout.address"}, "layout.address is empty: name an address to listen on");
}

}  // namespace

std::vector<std::string> faults_of(const Job& job, const Machine& machine) {
  Check check(job);
  check.values();
  check.model();
  check.loss();
  check.data();
  check.train();
  check.numerics(machine);
  check.layout();
  return std::move(check.faults);
}

}  // namespace tutti
