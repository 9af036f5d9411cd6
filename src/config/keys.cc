// The rows of the schema, one per key. A new key is a field in job.h (in plan_keys.h, if plans are
// made by it), a row here, and what `./tutti docs` then writes. The file is longer than most,
// because all keys are in one table.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <type_traits>

#include "base/error.h"
#include "config/job_parts.h"
#include "config/reserved_words.h"
#include "config/schema.h"

namespace tutti {

namespace {

/// Says the limits of the key it was made for.
class Row {
 public:
  explicit Row(Key& key) : key_(key) {}
  Row& range(double low, double high) { return limit({low, high, false}); }
  Row& at_least(double low) { return limit({low, Limits{}.high, false}); }
  Row& fraction() { return limit({0, 1, true}); }
  Row& one_of(std::vector<std::string> allowed) {
    key_.allowed = std::move(allowed);
    return *this;
  }
  /// A run that goes on may have another value.
  Row& may_change() {
    key_.may_change = true;
    return *this;
  }
  /// When the key says nothing, and why: "" where it does.
  Row& idle(std::string (*reason)(const Job& job)) {
    key_.idle = reason;
    return *this;
  }
  /// The planner says its value where nobody does, and may try several (plan/search/choose.cc).
  Row& searched() {
    key_.searched = true;
    return *this;
  }
  /// How the value stands in a layout's name, and in its short one.
  Row& named(std::string in_full, std::string in_short) {
    key_.long_name = std::move(in_full);
    key_.short_name = std::move(in_short);
    return *this;
  }
  Row& always_named() {
    key_.always_named = true;
    return *this;
  }
  /// Tables and the header of a run show the value themselves.
  Row& own_column() {
    key_.own_column = true;
    return *this;
  }
  /// What `auto` is where it does nothing; a layout's name does not say it either.
  Row& off(Value value) {
    key_.off = std::move(value);
    return *this;
  }
  Row& gpu() {
    key_.gpu = true;
    return *this;
  }
  Row& float16() {
    key_.float16 = true;
    return *this;
  }

 private:
  Row& limit(Limits limits) {
    key_.limits = limits;
    return *this;
  }
  Key& key_;
};

/// Adds the keys of one section, whose fields are in `part` of a Job.
template <class Part>
class Rows {
 public:
  Rows(std::vector<Key>& keys, std::string section, Part Job::*part)
      : keys_(keys), section_(std::move(section)), part_(part) {}

  /// `Owner` is the part, or a base of it.
  template <class T, class Owner>
  Row add(T Owner::*field, std::string name, Value fallback, std::string help) {
    Key key = key_of(field, std::move(name), std::move(fallback), std::move(help));
    // Seeds are unsigned in a Job and integers in a file, where they are at most 2^63 - 1.
    // Small counts are ints in a Job; their limits keep them small.
    constexpr bool kWhole = std::is_integral_v<T> && !std::is_same_v<T, bool>;
    using Stored = std::conditional_t<kWhole, int64_t, T>;
    TUTTI_CHECK(std::holds_alternative<Stored>(key.fallback), "default of {} has another type",
                key.full_name());
    key.get = [part = part_, field](const Job& job) {
      return Value(static_cast<Stored>(job.*part.*field));
    };
    key.set = [part = part_, field](Job& job, const Value& value) {
      job.*part.*field = static_cast<T>(std::get<Stored>(value));
    };
    keys_.push_back(std::move(key));
    return Row(keys_.back());
  }

  /// One of the names of an enum, which are all that it allows.
  template <Named E, class Owner>
  Row add(E Owner::*field, std::string name, E fallback, std::string help) {
    Key key = key_of(field, std::move(name), std::string(name_of(fallback)), std::move(help));
    for (const auto& known : kNamesOf<E>) key.allowed.emplace_back(known.name);
    key.get = [part = part_, field](const Job& job) {
      return Value(std::string(name_of(job.*part.*field)));
    };
    key.set = [part = part_, field](Job& job, const Value& value) {
      const std::string& word = std::get<std::string>(value);
      const std::optional<E> named = value_named<E>(word);
      TUTTI_CHECK(named, "{} is none of its enum's names", word);
      job.*part.*field = *named;
    };
    keys_.push_back(std::move(key));
    return Row(keys_.back());
  }

  /// An integer whose default is "auto".
  template <class T, class Owner>
  Row add_automatic(T Owner::*field, std::string name, std::string help) {
    const Row row = add(field, std::move(name), kAutomatic, std::move(help));
    Key& key = keys_.back();
    key.automatic = true;
    key.fallback = std::string("auto");
    key.off = int64_t{0};
    key.allowed = {"auto"};
    key.get = [part = part_, field](const Job& job) {
      const int64_t value = job.*part.*field;
      return value == kAutomatic ? Value(std::string("auto")) : Value(value);
    };
    key.set = [part = part_, field](Job& job, const Value& value) {
      const auto* number = std::get_if<int64_t>(&value);
      job.*part.*field = static_cast<T>(number != nullptr ? *number : kAutomatic);
    };
    return row;
  }

 private:
  /// What the row of every type says.
  template <class T, class Owner>
  Key key_of(T Owner::*field, std::string name, Value fallback, std::string help) const {
    Key key;
    key.section = section_;
    key.layout = std::is_same_v<Part, LayoutConfig>;
    key.name = std::move(name);
    key.help = std::move(help);
    key.fallback = key.off = std::move(fallback);
    key.field = [part = part_, field](const Job& job) -> const void* {
      return &(job.*part.*field);
    };
    return key;
  }

  std::vector<Key>& keys_;
  std::string section_;
  Part Job::*part_;
};

constexpr double kMany = 1 << 20;  // of what is counted by an int
const std::vector<int64_t> kHidden = {64, 64}, kImage = {1, 28, 28}, kChannels = {32, 64};
const std::vector<double> kNone;
const std::vector<std::string> kNames;

std::vector<std::string> with_auto(std::vector<std::string> names) {
  names.insert(names.begin(), "auto");
  return names;
}

/// "adam, adamw, lion": the parts with a property, with which the help of a key begins.
template <class Part, class Fits>
std::string of(const Fits& fits) {
  return fmt::format("{}", fmt::join(names_where<Part>(fits), ", "));
}

void add_model(std::vector<Key>& keys) {
  using C = ModelConfig;
  Rows<C> rows(keys, "model", &Job::model);
  rows.add(&C::kind, "kind", "gpt", "what is trained; `custom`: a C++ program brings its own model")
      .one_of(names_of<ModelPart>());

  // These keys are the sizes and options of a gpt.
  rows.add(&C::layers, "layers", 4, "gpt: blocks of attention and MLP").range(1, kMany);
  rows.add(&C::width, "width", 192, "gpt: size of the residual stream, a multiple of `heads`")
      .range(1, kMany);
  rows.add(&C::heads, "heads", 6, "gpt: attention heads").range(1, kMany);
  rows.add(&C::kv_heads, "kv_heads", 0,
           "gpt: heads of keys and values (grouped queries); 0: as many as `heads`")
      .range(0, kMany);
  rows.add(&C::context, "context", 128, "gpt: tokens in a sequence").range(1, kMany);
  rows.add(&C::vocab, "vocab", 256, "gpt: number of tokens; bytes need 256").range(2, kMany);
  rows.add(&C::tied, "tied", false, "gpt: the head uses the token embedding");
  rows.add(&C::positions, "positions", Positions::kLearned,
           "gpt: a table of positions, or rotated queries and keys");
  rows.add(&C::rotary_base, "rotary_base", 10000.0, "gpt: base of the rotary frequencies")
      .range(1, 1e9);
  rows.add(&C::mlp_width, "mlp_width", 0,
           "gpt: hidden size; 0: 4 times `width`, with swiglu 8/3 times, rounded up to 16")
      .range(0, kMany);
  rows.add(&C::bias, "bias", true, "gpt: linear layers and layer norms have biases");

  // Several kinds of models read these, each as its help says.
  rows.add(&C::activation, "activation", Activation::kGelu, "between layers; swiglu: gpt only");
  rows.add(&C::norm, "norm", NormKind::kAuto, "resolved once: gpt layer, cnn batch, others none");
  rows.add(&C::dropout, "dropout", 0.0,
           "gpt: after embedding, attention and MLP; mlp, wide-deep, autoencoder: after hidden "
           "layers; cnn: before the last layer")
      .fraction();

  // How parameters start is the same question for all kinds.
  rows.add(&C::init, "init", InitKind::kNormal, "how weights are drawn");
  rows.add(&C::init_scale, "init_scale", 0.02,
           "standard deviation of `normal` and `truncated-normal`, value of `constant`")
      .range(-1e6, 1e6);
  rows.add(&C::scaled_residual, "scaled_residual", true,
           "gpt: residual projections start smaller by sqrt(2 layers), as in GPT-2");
  rows.add(&C::init_from, "init_from", "",
           "a safetensors file or a run: its values replace the drawn ones, by name");
  rows.add(&C::init_only, "init_only", "*",
           "names that are taken from `init_from`; * is any part, ? any one character");

  // These are the sizes of dense layers and of records; `classes` is for every model of classes.
  rows.add(&C::hidden, "hidden", kHidden, "mlp, wide-deep, autoencoder: sizes of the hidden layers")
      .range(1, kMany);
  rows.add(&C::inputs, "inputs", 16, "mlp, autoencoder: features of a record").range(1, kMany);
  rows.add(&C::outputs, "outputs", 1, "mlp: values that a regression predicts").range(1, kMany);
  rows.add(&C::classes, "classes", 8, "number of classes").range(2, kMany);

  // These are the sizes of a cnn.
  rows.add(&C::image, "image", kImage,
           "channels, height and width of images; also what [augment] takes flat records for")
      .range(1, kMany);
  rows.add(&C::channels, "channels", kChannels,
           "cnn: channels of each stage; every stage halves the image")
      .range(1, kMany);
  rows.add(&C::depth, "depth", 1, "cnn: blocks of a stage").range(1, kMany);
  rows.add(&C::residual, "residual", true, "cnn: blocks add their input (ResNet)");
  rows.add(&C::pool, "pool", Pool::kMax, "cnn: how the stem halves the image");

  // The remaining kinds have a key or two of their own.
  rows.add(&C::embedding, "embedding", 8, "wide-deep: size of a category's embedding")
      .range(1, kMany);
  rows.add(&C::latent, "latent", 16, "autoencoder: size of the code").range(1, kMany);
  rows.add(&C::variational, "variational", true,
           "autoencoder: codes are drawn; needed by `tutti generate`");
  rows.add(&C::path, "path", "", "script: a TorchScript file");
  rows.add(&C::autograd, "autograd", false,
           "the same model from adapted torch operations, for comparison");
}

void add_loss(std::vector<Key>& keys) {
  using C = LossConfig;
  Rows<C> rows(keys, "loss", &Job::loss);
  rows.add(&C::kind, "kind", "auto", "resolved once: what suits the model and the data")
      .one_of(with_auto(names_of<LossPart>()));
  rows.add(&C::label_smoothing, "label_smoothing", 0.0,
           "cross-entropy: share of the target spread over all classes")
      .fraction();
  rows.add(&C::class_weights, "class_weights", kNone,
           "cross-entropy: a weight for every class; empty: all 1")
      .range(0, 1e6);
  rows.add(&C::delta, "delta", 1.0,
           of<LossPart>(&LossPart::delta) + ": where the square ends and the line begins")
      .range(1e-6, 1e6);
  rows.add(&C::teacher, "teacher", "", "distill: the run whose checkpoint teaches");
  rows.add_automatic(
          &C::teacher_step, "teacher_step",
          "distill: the step of the checkpoint that teaches; `auto`: the latest when the "
          "run begins, which the run then keeps to")
      .range(0, 1e12);
  rows.add(&C::temperature, "temperature", 2.0, "distill: softens both distributions")
      .range(1e-3, 1e3);
  rows.add(&C::mix, "mix", 0.5, "distill: weight of the teacher; the rest is cross-entropy")
      .range(0, 1);
  rows.add(&C::kl, "kl", 1.0, "autoencoder: weight of the code's divergence from a standard normal")
      .range(0, 1e6);
}

void add_data(std::vector<Key>& keys) {
  using C = DataConfig;
  Rows<C> rows(keys, "data", &Job::data);

  // These keys say where the records are and which of them are kept from training.
  rows.add(&C::kind, "kind", "text",
           "where records come from; the parts at the end of docs/job.md say what each is")
      .one_of(names_of<DataPart>());
  rows.add(&C::path, "path", "kjv",
           "file or folder; `kjv`: the King James text, `fashion-mnist`: the images, which set-up "
           "installs");
  rows.add(&C::labels, "labels", "",
           "idx, numpy: the file of the labels, unless `path` is a folder with MNIST's names");
  rows.add(&C::test, "test", "", "file or folder that is evaluated once, at the end");
  rows.add(&C::test_labels, "test_labels", "", "idx, numpy: its labels");
  rows.add(&C::held_out, "held_out", 0.05,
           "records kept for evaluation. Below 1: a fraction, by which each is drawn by itself; "
           "from 1 on (`1.0` too): exactly so many")
      .range(0, 1e12);
  rows.add(&C::folds, "folds", 0,
           "above 1: the held-out records are one of so many folds (`tutti crossval`)")
      .range(0, 1000);
  rows.add(&C::fold, "fold", 0, "which of the folds, from 0").range(0, 999);

  // These say how tables and arrays are read and cleaned.
  const std::string tables = of<DataPart>(&DataPart::table);
  rows.add(&C::columns, "columns", kNames,
           tables + ": the columns that are read, as docs/data.md says");
  rows.add(&C::delimiter, "delimiter", kAutomaticDelimiter,
           "csv: one character; `auto`: a comma, or a tab in .tsv files");
  rows.add(&C::header, "header", true,
           "csv: the first line names the columns; else they are 1, 2, 3, ...");
  rows.add(&C::scale, "scale", ValueScale::kNone,
           "idx, images, numpy: divided by 255, to mean 0 and deviation 1, or to [0, 1]");
  rows.add(&C::missing, "missing", MissingValue::kFail, tables + ": what an empty number is");
  rows.add(&C::outliers, "outliers", Outliers::kKeep,
           tables + ": what a number far from the mean becomes");
  rows.add(&C::outlier_limit, "outlier_limit", 6.0, "standard deviations that are far")
      .range(0.1, 1e6);
  rows.add(&C::bad, "bad", BadRecord::kFail,
           "a malformed record ends the run, or is skipped and counted");

  // These say how text becomes tokens and how often a record is drawn.
  rows.add(&C::tokenizer, "tokenizer", kBytesTokenizer,
           "text: bytes, `bpe` (trained on the file, `vocab` tokens), or a file");
  rows.add(&C::resample, "resample", Resample::kNone,
           "records are drawn by weight: all classes alike, `resample_weights` of the classes, or "
           "a column's");
  rows.add(&C::resample_weights, "resample_weights", kNone, "a weight for every class")
      .range(0, 1e6);
}

void add_augment(std::vector<Key>& keys) {
  using C = AugmentConfig;
  Rows<C> rows(keys, "augment", &Job::augment);
  rows.add(&C::crop, "crop", 0,
           "pixels of padding around an image before a random crop of its size")
      .range(0, 1024);
  rows.add(&C::flip, "flip", 0.0, "probability of a left-right flip").range(0, 1);
  rows.add(&C::rotate, "rotate", 0.0, "degrees, either way").range(0, 180);
  rows.add(&C::scale, "scale", 0.0, "fraction by which the size changes, either way").range(0, 0.9);
  rows.add(&C::brightness, "brightness", 0.0, "fraction, either way, for each channel")
      .range(0, 10);
  rows.add(&C::contrast, "contrast", 0.0, "fraction, either way").range(0, 1);
  rows.add(&C::noise, "noise", 0.0, "standard deviation of added noise").range(0, 1e6);
  rows.add(&C::cutout, "cutout", 0, "side of a square set to zero").range(0, 1024);
  rows.add(&C::mixup, "mixup", 0.0, "alpha of the beta distribution by which two samples are mixed")
      .range(0, 100);
}

void add_train(std::vector<Key>& keys) {
  using C = TrainConfig;
  Rows<C> rows(keys, "train", &Job::train);

  // The batch of a step is lanes x micro_batches x micro_batch_size samples, whatever runs it.
  rows.add(&C::lanes, "lanes", 8,
           "parts of a step's batch that are computed side by side; ranks are at most the lanes")
      .range(1, 65536);
  rows.add(&C::micro_batches, "micro_batches", 1, "micro-batches of a lane, one after another")
      .range(1, kMany);
  rows.add(&C::micro_batch_size, "micro_batch_size", 4, "samples in a micro-batch").range(1, kMany);
  rows.add(&C::tensor_slices, "tensor_slices", 1, "columns in which split layers are defined")
      .range(1, 1024);
  rows.add(&C::steps, "steps", 400, "steps of the whole job; schedules span them").range(1, 1e12);
  rows.add(&C::seed, "seed", 1,
           "of initial values, split and order of the data, augmentation and dropout")
      .at_least(0);

  // Each optimizer reads some of these numbers. JobCheck::train refuses momentum and nesterov for
  // one that has none; the other numbers have defaults, which it ignores.
  using O = OptimizerPart;
  const auto moments = [](const O& part) { return part.beta1 && part.beta2; };
  const auto squares = [](const O& part) { return part.beta2 && !part.beta1; };
  rows.add(&C::optimizer, "optimizer", "adamw", "docs/optimizers.md has their formulas")
      .one_of(names_of<OptimizerPart>());
  rows.add(&C::lr, "lr", 1e-3, "learning rate at its highest").range(0, 1e6);
  rows.add(&C::beta1, "beta1", 0.9, of<O>(&O::beta1) + ": decay of the first moment").fraction();
  rows.add(&C::beta2, "beta2", 0.999,
           of<O>(moments) + ": decay of the second moment; " + of<O>(squares) + ": of the squares")
      .fraction();
  rows.add(&C::eps, "eps", 1e-8, "added to the root of the second moment").range(0, 1);
  rows.add(&C::weight_decay, "weight_decay", 0.0,
           of<O>(&O::decoupled) + ": decoupled; others: added to the gradient")
      .range(0, 1e6);
  rows.add(&C::momentum, "momentum", 0.0, of<O>(&O::momentum) + ": momentum").fraction();
  rows.add(&C::nesterov, "nesterov", false, of<O>(&O::nesterov) + ": Nesterov's momentum");
  rows.add(&C::groups, "groups", kNames,
           "parameters by name, the first that fits: \"*.bias weight_decay=0\", \"embed.* lr=0.1\" "
           "(a factor), \"stem.* frozen\"");

  // The schedule multiplies `lr`, step by step.
  using S = SchedulePart;
  const std::string watching = of<S>(&S::watches);
  const auto ends = [](const S& part) { return part.final_lr && !part.watches; };
  rows.add(&C::schedule, "schedule", "cosine", "course of the learning rate after the warm-up")
      .one_of(names_of<SchedulePart>());
  rows.add(&C::warmup, "warmup", 0, "steps of linear warm-up; inverse-sqrt falls from there")
      .range(0, 1e12);
  rows.add(&C::final_lr, "final_lr", 0.1,
           of<S>(ends) + ": the fraction of `lr` it ends at; " + watching + ": the least")
      .range(0, 1);
  rows.add(&C::factor, "factor", 0.1, of<S>(&S::factor) + ": what the rate is multiplied by")
      .range(0, 1);
  rows.add(&C::every, "every", 100, of<S>(&S::every) + ": after so many steps").range(1, 1e12);
  rows.add(&C::power, "power", 2.0, of<S>(&S::power) + ": its power").range(0, 100);
  rows.add(&C::cycle, "cycle", 0,
           of<S>(&S::cycle) + ": steps of the first cycle before it restarts; 0: one cycle")
      .range(0, 1e12);
  rows.add(&C::cycle_growth, "cycle_growth", 1.0,
           of<S>(&S::cycle) + ": each cycle is so many times as long as the one before")
      .range(1, 100);
  rows.add(&C::patience, "patience", 3,
           watching + ": evaluations without improvement before the rate falls")
      .range(1, kMany);

  // Gradients are clipped after the sum over all lanes.
  rows.add(&C::clip, "clip", 1.0, "what gradients are clipped to; 0: off").range(0, 1e30);
  rows.add(&C::clip_by, "clip_by", ClipBy::kNorm,
           "the norm of the whole gradient, of each unit's, or each value");

  // Evaluations, and the decisions that follow them, are counted in steps.
  rows.add(&C::eval_every, "eval_every", 0, "steps between evaluations; 0: only at the end")
      .range(0, 1e12);
  rows.add(&C::eval_batches, "eval_batches", 4, "held-out micro-batches per lane; 0: no evaluation")
      .range(0, kMany);
  rows.add(&C::baseline, "baseline", BaselineKind::kAuto,
           "what evaluations compare the held-out loss with: for text in bytes a bigram model, for "
           "`clicks` the truth they were drawn from");
  rows.add(&C::watch, "watch", "loss",
           "the held-out metric that plateau, early_stop and keep_best go by")
      .one_of(names_of<MetricPart>());
  rows.add(&C::min_change, "min_change", 0.0, "what an improvement of it must exceed")
      .range(0, 1e6);
  rows.add(&C::early_stop, "early_stop", 0,
           "evaluations without improvement after which the run ends; 0: off")
      .range(0, kMany);
  rows.add(&C::keep_best, "keep_best", false,
           "the checkpoint of the best evaluation is kept in addition to the last");

  // A run leaves checkpoints and, if the model writes text, a sample.
  rows.add(&C::checkpoint_every, "checkpoint_every", 0,
           "steps between checkpoints; 0: only at the end")
      .range(0, 1e12);
  rows.add(&C::keep, "keep", 0,
           "so many of the last checkpoints are kept, the others removed once a newer one is "
           "complete; 0: all")
      .range(0, kMany);
  rows.add(&C::prompt, "prompt", "", "gpt: start of the sample printed at the end");
  rows.add(&C::sample_bytes, "sample_bytes", 0, "gpt: length of that sample; 0: none")
      .range(0, kMany);
}

void add_numerics(std::vector<Key>& keys) {
  using C = NumericsConfig;
  Rows<C> rows(keys, "numerics", &Job::numerics);

  // A run that goes on may change these two; its bits are others from there on.
  rows.add(&C::device, "device", DeviceKind::kAuto,
           "what computes; resolved once: `cuda` where there is a GPU that can be used (`tutti "
           "doctor`)")
      .may_change();
  rows.add(&C::precision, "precision", Precision::kFloat32,
           "of activations and matmuls, 16 bits on a GPU alone; weights, sums and the optimizer "
           "are float32")
      .may_change();
  rows.add(&C::loss_scale, "loss_scale", 0.0,
           "float16: what the loss is multiplied by at first; 0: 65536. A step whose gradients "
           "overflow is skipped and halves it")
      .range(0, 1e30)
      .float16();
  rows.add(&C::scale_growth, "scale_growth", 2000,
           "float16: steps without a skipped one before the scale doubles")
      .range(1, 1e12)
      .float16();

  // These decide the order of the additions, and so the last bits.
  rows.add(&C::order, "order", SumOrder::kLane,
           "gradients are summed per lane first, or over the lanes after each micro-batch");
  rows.add(&C::reduce, "reduce", ReduceKind::kExact,
           "`exact`: the fixed tree; `ring`: the bits depend on the number of ranks");
  rows.add(&C::matmul, "matmul", MatmulKind::kOwn,
           "on a CPU: `own` kernels, with the same bits on every processor, or MKL's");
}

// When keys of the layout say nothing.

std::string no_stages(const Job& job) {
  return job.layout.pipeline == 1 ? "layout.pipeline = 1: there are no stages to order or cut" : "";
}

std::string other_schedule(const Job& job, bool (*fits)(const PipelinePart& part),
                           const char* what) {
  if (const std::string reason = no_stages(job); !reason.empty()) return reason;
  if (fits(part_named<PipelinePart>(job.layout.schedule))) return "";
  return fmt::format("layout.schedule = \"{}\": only {} {}", job.layout.schedule,
                     quoted_list(names_where<PipelinePart>(fits), "and"), what);
}

bool open_chunks(const PipelinePart& part) { return part.chunks == 0; }

std::string no_chunks(const Job& job) {
  return other_schedule(job, open_chunks, "has chunks of one's own number");
}

bool made_to_measure(const PipelinePart& part) { return part.splits; }

std::string no_measure(const Job& job) {
  return other_schedule(job, made_to_measure, "are made to measure");
}

std::string no_slices(const Job& job) {
  return job.layout.zero <= 0 ? "layout.zero = 0: nothing is sliced" : "";
}

std::string no_gathers(const Job& job) {
  if (job.layout.zero >= 3) return "";
  return fmt::format("layout.zero = {}: only ZeRO-3 gathers units", job.layout.zero);
}

std::string no_offload(const Job& job) {
  const bool none = job.layout.offload == Offload::kNone;
  return none ? "layout.offload = \"none\": nothing is offloaded" : "";
}

void add_layout(std::vector<Key>& keys) {
  using C = LayoutConfig;
  Rows<C> rows(keys, "layout", &Job::layout);

  // These say how many ranks there are, what they are and what connects them.
  rows.add(&C::ranks, "ranks", 0,
           "0: one per core this process may use, or one per GPU, in whole replicas of tensor x "
           "pipeline; at most one of these per lane")
      .range(0, 65536);
  rows.add(&C::plan, "plan", PlanKind::kGiven, "`auto`: the planner chooses what is not set");
  rows.add(&C::workers, "workers", Workers::kProcess, "what a rank is");
  rows.add(&C::hosts, "hosts", 1, "ranks are grouped into hosts in order").range(1, 65536);
  rows.add(&C::transport, "transport", "auto",
           "what carries the bytes; `auto`: shm, inproc between threads, nccl between GPUs")
      .one_of(with_auto(names_of<TransportPart>()));
  rows.add(
      &C::isa, "isa", "auto",
      "the instructions that kernels use on a CPU: `avx512`, `avx2`, `portable` (any "
      "processor's), or one of them for each rank (`avx512,avx2`); `auto`: the fastest of each "
      "host");
  rows.add(&C::timeout, "timeout", 30.0, "seconds of silence before a rank is given up")
      .range(0.1, 86400);

  // These change when work is done, and on a GPU how it is issued.
  rows.add(&C::overlap, "overlap", true, "gradients are reduced while backward still runs");
  rows.add(&C::graph, "graph", true, "cuda: a steady step is captured once and launched again")
      .gpu();
  rows.add(&C::prefetch, "prefetch", true,
           "cuda: the next step's input travels to the GPU while this one runs")
      .gpu();

  // These cut the model: the axes of the mesh, and the order of a stage's cells.
  rows.add(&C::tensor, "tensor", 1, "ranks along the tensor axis").range(1, 65536).searched();
  rows.add(&C::pipeline, "pipeline", 1, "pipeline stages; data ranks = ranks / (tensor x pipeline)")
      .range(1, 65536)
      .searched();
  rows.add(&C::schedule, "schedule", PlanKeys{}.schedule, "pipeline schedule")
      .one_of(names_of<PipelinePart>())
      .searched()
      .named(", {}", ",{}")
      .always_named()
      .idle(no_stages);
  rows.add(&C::chunks, "chunks", 2,
           of<PipelinePart>(open_chunks) + ": parts of the model that a stage has")
      .range(2, 64)
      .searched()
      .named(", {} chunks", "/{}")
      .idle(no_chunks);
  rows.add(&C::in_flight, "in_flight", 0,
           of<PipelinePart>(made_to_measure) +
               ": micro-batches that a part of the model keeps, in an order made to measure for "
               "parts of unequal cost; more keep stages from waiting and take memory; 0: the "
               "published order")
      .range(0, 65536)
      .searched()
      .named(", {} in flight", "/{}")
      .idle(no_measure);
  rows.add(&C::cut, "cut", "",
           "blocks with which the pipeline's later parts begin (`blocks.2,blocks.4`); empty: by "
           "cost")
      .idle(no_stages);

  // These save memory for more work or traffic: ZeRO, recomputing and offloading.
  rows.add_automatic(&C::zero, "zero",
                     "ZeRO stage: what data-parallel ranks share out; `auto`: 1 where it costs "
                     "nothing, else 0")
      .range(0, 3)
      .searched()
      .named(", zero {}", ",zero{}");
  rows.add(&C::shards, "shards", 0,
           "ZeRO: over how many data ranks state is sliced; 0: all; fewer: replicas of slices")
      .range(0, 65536)
      .searched()
      .named(" over {}", "/{}")
      .idle(no_slices);
  rows.add(&C::depth, "depth", 1, "ZeRO-3: units gathered ahead of their use")
      .range(0, 64)
      .named(", depth {}", ",depth{}")
      .idle(no_gathers);
  rows.add(&C::recompute, "recompute", Recompute::kNone,
           "activations computed again in backward instead of kept: of attention, or of everything")
      .searched()
      .named(", recompute {}", ",{}");
  rows.add(&C::offload, "offload", Offload::kNone,
           "what lives in a second tier and comes in when it is used: the optimizer's values, or "
           "parameters too. The tier is a file, of a GPU pinned memory of the host")
      .named(", offload {}", ",offload-{}");
  rows.add(&C::offload_folder, "offload_folder", "",
           "where the file of offloaded values is; empty: in the system's folder for temporary "
           "files. On a GPU there is none")
      .idle(no_offload);

  // These say who sums gradients and who reads records.
  rows.add(&C::fold, "fold", FoldKind::kAuto,
           "where the lanes' gradients are summed: same bits everywhere")
      .searched()
      .named(", fold {}", "")
      .own_column()
      .off(std::string(name_of(FoldKind::kLocal)));
  rows.add(&C::partition, "partition", PartitionKind::kLanes,
           "which rank reads a record: the one that computes it, equal parts, in turns, by hash, "
           "by a feature, or a function of one's own");
  rows.add(&C::partition_by, "partition_by", kByClass, "feature: the column, or `class`");
  rows.add(&C::bucket_floats, "bucket_floats", kParcelFloats,
           "small units are merged into parcels of about so many floats")
      .range(1, 1e12);

  rows.add(&C::save_beside, "save_beside", true,
           "checkpoints are written from a copy while steps go on; one that is due while the last "
           "is being written waits for a later step. `false`: steps wait, no copy is made");

  // Only transports that listen read these.
  rows.add(&C::address, "address", "127.0.0.1", "tcp: where ranks listen");
  rows.add(&C::port, "port", 0, "port where ranks find each other; 0: any free one")
      .range(0, 65535);
  rows.add(&C::connections, "connections", 2, "tcp: connections between two ranks").range(1, 64);
}

}  // namespace

const std::vector<Section>& sections() {
  static const std::vector<Section> all = {
      {"model", "what is trained"},
      {"loss", "what is minimised"},
      {"data", "what it is trained on"},
      {"augment", "how training images are changed, sample by sample; 0: not"},
      {"train", "batch, optimizer, schedule, evaluation"},
      {"numerics", "what else the bits of the result depend on"},
      {"layout", "how it is run; the result does not depend on it"},
  };
  return all;
}

const std::vector<Key>& keys() {
  static const std::vector<Key> all = [] {
    std::vector<Key> keys;
    for (auto add :
         {add_model, add_loss, add_data, add_augment, add_train, add_numerics, add_layout})
      add(keys);
    return keys;
  }();
  return all;
}

}  // namespace tutti
