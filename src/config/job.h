// A job file as a typed value. What is in [model], [loss], [data], [augment], [train] and
// [numerics] is the job and changes the result; what is in [layout] must not. Every key, its type,
// default, limits and one line of help stand in one table (config/keys.cc), from which parsing,
// `explain`, docs/job.md and the nearest-key hints are made.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/code_path.h"
#include "config/enum_text.h"
#include "config/enums.h"
#include "config/plan_keys.h"

namespace tutti {

struct ModelConfig {
  std::string kind;  // a ModelPart (config/job_parts.h)
  int64_t layers, width, heads, context, vocab;
  bool tied;              // gpt: the head uses the token embedding
  Activation activation;  // swiglu: gpt
  NormKind norm;
  Positions positions;  // gpt
  double rotary_base;
  int64_t kv_heads;   // gpt: heads of keys and values; 0: as many as heads
  int64_t mlp_width;  // gpt: 0: 4 width, of swiglu 8/3 width rounded up to 16
  bool bias;          // gpt: linear layers and norms have biases
  double dropout;
  double init_scale;  // standard deviation of the (truncated) normal; the constant
  InitKind init;
  bool scaled_residual;              // GPT-2: residual projections start at init / sqrt(2 layers)
  std::string init_from;             // safetensors file or run whose values replace the drawn ones
  std::string init_only;             // names (glob) that are taken from there
  std::vector<int64_t> hidden;       // mlp, wide-deep, autoencoder: sizes of the hidden layers
  int64_t inputs, outputs, classes;  // features; values of a regression; classes
  std::vector<int64_t> image;        // channels, height, width
  std::vector<int64_t> channels;     // cnn: of each stage
  int64_t depth;                     // cnn: blocks of a stage
  bool residual;                     // cnn
  Pool pool;                         // cnn
  int64_t embedding;                 // wide-deep: size of a category's embedding
  int64_t latent;                    // autoencoder
  bool variational;                  // autoencoder: latent values are drawn; needed to generate
  std::string path;                  // script: the TorchScript file
  // build the same model from adapted torch operations instead of the hand-written segments
  bool autograd;
};

/// An integer that says "auto" in a job file, until it is resolved.
inline constexpr int64_t kAutomatic = -1;

struct LossConfig {
  std::string kind;  // auto | a LossPart
  double label_smoothing;
  std::vector<double> class_weights;  // empty: all 1
  double delta;                       // where huber's line begins
  std::string teacher;                // distill: run folder
  int64_t teacher_step;     // of its checkpoint; kAutomatic: the latest, when a run begins
  double temperature, mix;  // distill: mix * soft + (1 - mix) * hard
  double kl;                // autoencoder: weight of the latent's divergence
};

struct DataConfig {
  std::string kind;  // a DataPart
  // a file or folder, or a word of kInstalledData (config/reserved_words.h)
  std::string path;
  std::string labels;  // idx, numpy: the file of the labels, where the folder does not say it
  std::string test, test_labels;  // evaluated once, at the end
  // fraction of the records kept for evaluation; from 1 on their number
  double held_out;
  int64_t folds, fold;  // > 1: the held-out records are fold `fold` of so many
  // of tables: "name: role options" (config/check/table_columns.h)
  std::vector<std::string> columns;
  std::string delimiter;  // csv: auto | one character
  bool header;            // csv: the first line names the columns
  ValueScale scale;       // of images and arrays
  MissingValue missing;
  Outliers outliers;
  double outlier_limit;  // standard deviations
  BadRecord bad;
  // text: bytes | bpe (trained on the file) | a tokenizer file
  std::string tokenizer;
  Resample resample;
  std::vector<double> resample_weights;  // of the classes
};

/// Changes of training images, keyed by (seed, sample); 0: off.
struct AugmentConfig {
  int64_t crop;   // pixels: zero padding, then a random crop of the old size
  double flip;    // probability of a left-right flip
  double rotate;  // degrees, either way
  double scale;   // fraction, either way
  double brightness, contrast;
  double noise;    // standard deviation
  int64_t cutout;  // side of a square of zeros
  double mixup;    // alpha of the beta distribution
  bool any() const {
    return crop > 0 || flip > 0 || rotate > 0 || scale > 0 || brightness > 0 || contrast > 0 ||
           noise > 0 || cutout > 0 || mixup > 0;
  }
};

struct TrainConfig {
  int64_t lanes, micro_batches, micro_batch_size, tensor_slices, steps;
  uint64_t seed;
  std::string optimizer;  // an OptimizerPart
  double lr, beta1, beta2, eps, weight_decay, momentum;
  bool nesterov;
  std::vector<std::string> groups;  // "pattern option=value..." (config/check/parameter_groups.h)
  std::string schedule;             // a SchedulePart
  int64_t warmup;                   // steps
  double final_lr;                  // fraction of lr that a schedule ends at
  double factor;                    // what lr is multiplied by when it falls
  int64_t every;                    // steps from one fall to the next
  double power;                     // of the polynomial
  // steps of the first cycle before a restart; 0: no restarts
  int64_t cycle;
  double cycle_growth;  // each cycle is so many times as long as the one before
  int64_t patience;     // evaluations without improvement
  double clip;          // 0: off
  ClipBy clip_by;
  // steps (0: only at the end); micro-batches of held-out data per lane (0: no evaluation at all)
  int64_t eval_every, eval_batches, checkpoint_every;
  BaselineKind baseline;  // what evaluations compare the held-out loss with
  // a metric: what plateau, early_stop and keep_best go by
  std::string watch;
  int64_t early_stop;  // evaluations without improvement after which the run ends; 0: off
  double min_change;   // what counts as an improvement
  int64_t keep;        // checkpoints; 0: all
  bool keep_best;      // a checkpoint of the best evaluation, in addition to the last
  std::string prompt;  // of the sample printed at the end
  int64_t sample_bytes;
};

struct NumericsConfig {
  DeviceKind device;
  Precision precision;
  double loss_scale;     // float16: what the loss is multiplied by at first; 0: 65536
  int64_t scale_growth;  // float16: steps without a skipped one before the scale doubles
  SumOrder order;
  ReduceKind reduce;
  MatmulKind matmul;
};

struct LayoutConfig : PlanKeys {
  PlanKind plan{};
  Workers workers{};
  std::string transport, address;
  PartitionKind partition{};
  std::string partition_by;  // feature: the column, or "class"
  // "blocks.2,blocks.4": where the pipeline's chunks begin; empty: by cost
  std::string cut;
  std::string offload_folder;
  std::string isa;  // of all ranks, or "avx512,avx2": one for each (config/isa.h)
  int64_t ranks = 0, tensor = 0, pipeline = 0, port = 0, connections = 0;
  int64_t shards = 0;        // ZeRO: over how many data ranks state is sliced; 0: all
  double timeout = 0;        // seconds
  bool save_beside = false;  // checkpoints are written from a copy while steps go on
  bool graph = false;        // cuda: a steady step is captured once and launched again
  bool prefetch = false;  // cuda: the next step's input travels to the device while this one runs
};

/// Where a key's value came from.
struct Origin {
  enum class Kind {
    kDefault,
    kBuiltin,   ///< a built-in job
    kFile,      ///< a line of the job's file
    kSetting,   ///< --set
    kResolved,  ///< an `auto` that became a value
    kPlanned,   ///< the planner's choice
  };
  Kind kind = Kind::kDefault;
  std::string place{};  ///< of kBuiltin and kFile: "built-in gpt-kjv", "my.toml:12"
  /// Whether whoever runs the job wrote it down.
  bool is_said() const { return kind == Kind::kFile || kind == Kind::kSetting; }
  /// As `explain` shows it.
  std::string text() const;
  bool operator==(const Origin&) const = default;
};

struct Job {
  std::string name;  // the file's `name`, else the built-in's name or the file's stem
  ModelConfig model{};
  LossConfig loss{};
  DataConfig data{};
  AugmentConfig augment{};
  TrainConfig train{};
  NumericsConfig numerics{};
  LayoutConfig layout{};
  /// Where each key's value came from, by "section.key". A key that a program has set has no entry.
  std::map<std::string, Origin> origin;
  /// What whoever runs the job should know of how it was read.
  std::vector<std::string> notes{};
  /// The origin of a key; kDefault if it has no entry.
  Origin origin_of(const std::string& key) const {
    const auto found = origin.find(key);
    return found == origin.end() ? Origin{} : found->second;
  }
};

/// Whether a model may not run on the job's layout: the rest of what is refused does not need it.
bool model_may_refuse(const Job& job);

/// A `--set section.key=value`. The value is TOML; a bare word is a string.
struct Setting {
  std::string key, value;
};

/// Names of the built-in jobs and their one-line descriptions (the first comment line of each
/// file).
std::vector<std::pair<std::string, std::string>> builtin_jobs();

/// `name` is a built-in's name or the path of a TOML file (which may say base = "built-in"). Throws
/// ConfigError with every fault of the file and the settings, each with its line ("my.toml:12:
/// unknown key train.step; did you mean train.steps?").
Job load_job(const std::string& name, const std::vector<Setting>& settings);
/// From TOML text; `source` names it in messages, and its stem is the job's name where the text has
/// none. An empty text is the job of all defaults.
Job parse_job(const std::string& text, const std::string& source,
              const std::vector<Setting>& settings);

struct Gpu {
  std::string name;                         // "NVIDIA H200"
  int64_t total_bytes = 0, free_bytes = 0;  // free: when it was asked
  int major = 0, minor = 0;                 // compute capability
};

struct Machine {
  int cores = 1;
  CodePath path = CodePath::kPortable;  // the fastest of this processor
  std::vector<Gpu> gpus{};  // those that can be used; rank r is on GPU r mod their number
  // why there are none and what mends it: "this host has no NVIDIA driver; run on a GPU host"
  std::string no_gpu{};
};

struct ModelRules;

/// Resolves `auto` values once, from what this process may use: device, ranks, transport,
/// fold. Their origin is kResolved. Then checks what needs all values: a batch that
/// cannot be cut as asked, ranks that make up no mesh or more data ranks than lanes, a device that
/// is not there. Throws ConfigError. Whoever makes no model hands in no rules: `{}`.
void resolve(Job& job, const Machine& machine, const ModelRules& rules);
/// For the job of a run that goes on, before resolve(): what its file says and has no meaning on
/// the device or in the precision that it goes on with (a GPU's keys on a CPU, a loss scale outside
/// of float16), or on its mesh (a schedule without stages), takes its default again. What was --set
/// stays, and is refused. A sample that the run's model cannot write was no reason to refuse it at
/// its beginning, and is none now.
void forget_idle_keys(Job& job, const Machine& machine);
/// Cores by affinity and the quotas of control groups (config/machine.h), and the fastest code path
/// of this processor. Its GPUs are not looked for: add_gpus (device/library.h) does.
Machine this_machine();

/// The complete job as TOML, a line per key with its origin as a comment (`explain`), or bare
/// (job.toml of a run). Both parse back to the same job. A GPU's keys are left out of a CPU's job,
/// which has no use for them.
std::string explain(const Job& job);
std::string to_toml(const Job& job);
/// Keys of the job proper that differ, one line each (what --resume refuses). What belongs to the
/// layout, the name and the origins may differ; so may the device and the precision (and with it
/// what is float16's alone), which device_differences names.
std::vector<std::string> job_differences(const Job& a, const Job& b);
/// What may change where a run goes on, but changes the bits from there on: "numerics.device: cpu
/// -> cuda".
std::vector<std::string> device_differences(const Job& a, const Job& b);
/// docs/job.md.
std::string job_reference();

}  // namespace tutti
