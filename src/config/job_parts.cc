// The tables of parts. A row says what the checks of a job ask; what the part does is in the folder
// that implements it, in a table under the same name.
#include "config/job_parts.h"

#include "base/text/lists.h"
#include "config/job.h"
#include "config/reserved_words.h"

namespace tutti {

template <>
std::span<const ModelPart> parts() {
  using enum NormKind;

  // The first norm of a row is what `auto` means for it.
  static const std::vector<ModelPart> all = {
      {.name = "gpt",
       .help = "a transformer that predicts the next token",
       .reads = {.tokens = true},
       .norms = {kLayer, kRms},
       .losses = LossNeed::kClasses,
       .sequences = true,
       .columns = true,
       .tied = true,
       .gated = true,
       .second_stage = "blocks.0"},
      {.name = "mlp",
       .help = "dense layers: classes or values of flat records",
       .reads = {.features = true},
       .norms = {kNone, kLayer, kRms, kBatch},
       .columns = true},
      {.name = "cnn",
       .help = "convolutions, with or without residuals: classes of images",
       .reads = {.images = true},
       .norms = {kBatch, kGroup, kLayer, kNone},
       .losses = LossNeed::kClasses,
       .columns = true},
      {.name = "wide-deep",
       .help = "a linear model and a deep one with embeddings: values of numbers and categories",
       .reads = {.fields = true},
       .norms = {kNone, kLayer, kRms, kBatch},
       .losses = LossNeed::kValues,
       .automatic_loss = "bce"},
      {.name = "autoencoder",
       .help = "dense layers to a code and back, variational or not",
       .reads = {.features = true},
       .norms = {kNone, kLayer, kRms, kBatch},
       .losses = LossNeed::kReconstruction,
       .automatic_loss = "mse",
       .reconstructs = true},
      {.name = "script",
       .help = "a TorchScript module of a file",
       .reads = {.features = true, .images = true}},
      {.name = "custom", .help = "a C++ program brings its own model", .foreign = true},
  };
  return all;
}

template <>
std::span<const LossPart> parts() {
  static const std::vector<LossPart> all = {
      {.name = "cross-entropy", .help = "of classes", .classes = true, .plain = true},
      {.name = "mse", .help = "squared distance of values", .reconstructs = true},
      {.name = "mae", .help = "absolute distance of values"},
      {.name = "huber", .help = "a square near 0 and a line beyond `delta`", .delta = true},
      {.name = "bce",
       .help = "binary cross-entropy of logits against probabilities",
       .reconstructs = true,
       .yes_or_no = true},
      {.name = "distill",
       .help = "towards a teacher's classes and the true ones",
       .classes = true,
       .taught = true},
  };
  return all;
}

template <>
std::span<const DataPart> parts() {
  // A row lists every form in which its records can reach a model; the model takes one of them.
  static const std::vector<DataPart> all = {
      {.name = "text",
       .help = "text of a file",
       .gives = {.tokens = true},
       .text = true,
       .baseline = BaselineKind::kBigram},
      {.name = "tokens", .help = "a file of tokens", .gives = {.tokens = true}, .unreadable = true},
      {.name = "walk",
       .help = "generated walks over the tokens",
       .gives = {.tokens = true},
       .generated = true},
      {.name = "points",
       .help = "generated points around centres, one for each class",
       .gives = {.features = true},
       .generated = true,
       .only_classes = true},
      {.name = "clicks",
       .help = "generated clicks of numbers and categories",
       .gives = {.fields = true},
       .generated = true,
       .fields = kClickFields,
       .baseline = BaselineKind::kTruth},
      {.name = "idx",
       .help = "IDX images, as MNIST's",
       .gives = {.features = true, .images = true}},
      {.name = "csv", .help = "tables", .gives = {.features = true, .fields = true}, .table = true},
      {.name = "jsonl",
       .help = "an object per line: tables, or text",
       .gives = {.tokens = true, .features = true, .fields = true},
       .table = true,
       .text = true},
      {.name = "numpy", .help = "NumPy arrays", .gives = {.features = true, .images = true}},
      {.name = "images",
       .help = "a folder of PNG and JPEG images, a folder for each class",
       .gives = {.features = true, .images = true},
       .decoded = true,
       .only_classes = true},
  };
  return all;
}

template <>
std::span<const OptimizerPart> parts() {
  static const std::vector<OptimizerPart> all = {
      {.name = "sgd",
       .help = "with or without momentum",
       .momentum = true,
       .nesterov = true,
       .gpu = true},
      {.name = "adagrad", .help = "by the sum of all squares", .gpu = true},
      {.name = "rmsprop",
       .help = "by a mean of the squares",
       .beta2 = true,
       .momentum = true,
       .gpu = true},
      {.name = "adam",
       .help = "by both moments; decay is added to the gradient",
       .beta1 = true,
       .beta2 = true,
       .gpu = true},
      {.name = "adamw",
       .help = "by both moments; decoupled decay",
       .beta1 = true,
       .beta2 = true,
       .decoupled = true,
       .gpu = true},
      {.name = "lion",
       .help = "the sign of a moment; decoupled decay",
       .beta1 = true,
       .beta2 = true,
       .decoupled = true,
       .gpu = true},
      {.name = "lamb",
       .help = "adam's direction, scaled layer by layer",
       .beta1 = true,
       .beta2 = true,
       .decoupled = true,
       .sliced = false,
       .gpu = true},
  };
  return all;
}

template <>
std::span<const SchedulePart> parts() {
  static const std::vector<SchedulePart> all = {
      {.name = "constant", .help = "`lr`"},
      {.name = "step",
       .help = "times `factor` after every `every` steps",
       .factor = true,
       .every = true},
      {.name = "exponential", .help = "the same course, smoothly", .factor = true, .every = true},
      {.name = "linear", .help = "down to `final_lr` in a straight line", .final_lr = true},
      {.name = "polynomial",
       .help = "down to `final_lr` by `power`",
       .final_lr = true,
       .power = true},
      {.name = "cosine",
       .help = "down to `final_lr` in half a wave, again and again with `cycle`",
       .final_lr = true,
       .cycle = true},
      {.name = "one-cycle", .help = "up and down in half waves", .final_lr = true},
      {.name = "inverse-sqrt", .help = "by the root of the steps"},
      {.name = "plateau",
       .help = "times `factor` when evaluations stop improving",
       .final_lr = true,
       .factor = true,
       .watches = true},
  };
  return all;
}

template <>
std::span<const PipelinePart> parts() {
  static const std::vector<PipelinePart> all = {
      {.name = "1f1b", .help = "a forward, a backward, in turns"},
      {.name = "gpipe", .help = "all forwards, then all backwards"},
      {.name = "interleaved", .help = "1f1b over several parts of each stage", .chunks = 0},
      {.name = "zero-bubble",
       .help = "the gradients of weights fill in where stages would wait",
       .splits = true},
      {.name = "zbv",
       .help = "the same, with two parts a stage, down and up again",
       .chunks = 2,
       .splits = true,
       .returns = true},
  };
  return all;
}

template <>
std::span<const MetricPart> parts() {
  // The line of an evaluation shows its headlines in the order of these rows.
  static const std::vector<MetricPart> all = {
      {.name = "loss", .help = "what is minimised", .larger_is_better = false},
      {.name = "accuracy", .help = "share of targets that were hit", .headline = true},
      {.name = "precision", .help = "of classes, their mean"},
      {.name = "recall", .help = "of classes, their mean"},
      {.name = "f1", .help = "of classes, their mean"},
      {.name = "auc",
       .help = "area under the ROC curve, one class against the rest",
       .headline = true},
      {.name = "perplexity",
       .help = "the exponential of the loss",
       .larger_is_better = false,
       .headline = true},
      {.name = "mse", .help = "mean squared distance", .larger_is_better = false},
      {.name = "mae",
       .help = "mean absolute distance",
       .larger_is_better = false,
       .headline = true},
      {.name = "r2", .help = "share of the variance that is explained", .headline = true},
  };
  return all;
}

template <>
std::span<const TransportPart> parts() {
  static const std::vector<TransportPart> all = {
      {.name = "inproc", .help = "between threads of one process", .processes = false},
      {.name = "shm", .help = "shared memory of a host; tcp between hosts", .threads = false},
      {.name = "tcp", .help = "connections", .windows = false, .listens = true},
      {.name = "nccl", .help = "between GPUs", .threads = false, .gpu = true},
  };
  return all;
}

std::string quoted_list(const std::vector<std::string>& names, std::string_view last) {
  std::vector<std::string> quoted;
  for (const std::string& name : names) quoted.push_back('"' + name + '"');
  return listed(quoted, last);
}

const ModelPart& model_part(const Job& job) { return part_named<ModelPart>(job.model.kind); }
const LossPart& loss_part(const Job& job) { return part_named<LossPart>(job.loss.kind); }
const DataPart& data_part(const Job& job) { return part_named<DataPart>(job.data.kind); }

BaselineKind baseline_offered(const Job& job) {
  const BaselineKind offered = data_part(job).baseline;
  const bool bytes = tokens_are_bytes(job.data);
  return offered == BaselineKind::kBigram && !bytes ? BaselineKind::kNone : offered;
}

bool connects(const TransportPart& transport, Workers workers) {
  return !transport.gpu && (workers == Workers::kThread ? transport.threads : transport.processes);
}

std::string_view automatic_transport(bool gpu, Workers workers) {
  return first_where<TransportPart>([&](const TransportPart& transport) {
    return gpu ? transport.gpu : connects(transport, workers);
  });
}

bool reads_images(const Job& job) {
  const Forms& reads = model_part(job).reads;
  return reads.images && (data_part(job).gives.images || !reads.features);
}

bool goes_by_evaluations(const Job& job) {
  return part_named<SchedulePart>(job.train.schedule).watches || job.train.early_stop > 0 ||
         job.train.keep_best;
}

}  // namespace tutti
