// A job file as a typed value. What is in [model], [data], [train] and [numerics] is the job and changes the result;
// what is in [layout] must not. Every key, its type, default, limits and one line of help stand in one table
// (config/schema.cc), from which parsing, `explain`, docs/job.md and the nearest-key hints are made.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tutti {

struct ModelConfig {
  std::string kind;  // gpt | mlp | custom (a C++ program brings its own)
  int64_t layers, width, heads, context, vocab;
  bool tied;          // gpt: the head uses the token embedding
  std::string gelu;   // exact | tanh
  double dropout;     // gpt: after embedding, attention and mlp
  double init_scale;  // standard deviation of the (truncated) normal
  std::string init;  // normal | truncated-normal | glorot | he   (weights; residual projections are scaled as in GPT-2)
  bool scaled_residual;         // GPT-2: residual projections start at init / sqrt(2 layers)
  std::vector<int64_t> hidden;  // mlp: sizes of the hidden layers
  int64_t inputs, classes;      // mlp
  bool autograd;  // build the same model from adapted torch operations instead of the hand-written segments
};

struct DataConfig {
  std::string kind;  // text | walk (generated: a learnable random walk over bytes) | points (generated, for mlp)
  std::string path;  // text: a file, or "kjv" for the King James text that set-up installs
  double held_out;   // fraction of the records kept for evaluation
};

struct TrainConfig {
  int64_t lanes, micro_batches, micro_batch_size, tensor_slices, steps;
  uint64_t seed;
  std::string optimizer;  // adamw | sgd
  double lr, beta1, beta2, eps, weight_decay, momentum;
  bool nesterov;
  std::string schedule;                                // cosine | constant
  int64_t warmup;                                      // steps
  double final_lr;                                     // fraction of lr that cosine ends at
  double clip;                                         // global norm; 0: off
  int64_t eval_every, eval_batches, checkpoint_every;  // steps (0: only at the end); micro-batches of held-out data per
                                                       // lane (0: no evaluation at all)
  std::string prompt;                                  // of the sample printed at the end
  int64_t sample_bytes;
};

struct NumericsConfig {
  std::string device, precision, order, reduce, codec;
  std::string isa;     // auto | avx2 | avx512
  std::string matmul;  // auto | mkl | own
  int64_t threads;
};

struct LayoutConfig {
  std::string kind, plan, workers, transport, schedule, recompute, fold, address;
  int64_t ranks, hosts, zero, tensor, pipeline, port, connections, bucket_floats;
  double timeout;  // seconds
  bool overlap;
};

struct ElasticConfig {
  bool enabled;
};

struct PsConfig {
  std::string mode;
  int64_t servers, workers, staleness, replicas;
};

struct Job {
  std::string name;  // the file's `name`, else the built-in's name or the file's stem
  ModelConfig model{};
  DataConfig data{};
  TrainConfig train{};
  NumericsConfig numerics{};
  LayoutConfig layout{};
  ElasticConfig elastic{};
  PsConfig ps{};
  /// "section.key" -> where its value came from: "default", "built-in gpt-kjv", "my.toml:12", "--set", "resolved".
  std::map<std::string, std::string> origin;
};

/// A `--set section.key=value`. The value is TOML; a bare word is a string.
struct Setting {
  std::string key, value;
};

/// Names of the built-in jobs and their one-line descriptions (the first comment line of each file).
std::vector<std::pair<std::string, std::string>> builtin_jobs();

/// `name` is a built-in's name or the path of a TOML file (which may say base = "built-in"). Throws ConfigError with
/// every fault of the file and the settings, each with its line ("my.toml:12: unknown key train.step; did you mean
/// train.steps?").
Job load_job(const std::string& name, const std::vector<Setting>& settings);
/// From TOML text; `source` names it in messages, and its stem is the job's name where the text has none. An empty text
/// is the job of all defaults.
Job parse_job(const std::string& text, const std::string& source, const std::vector<Setting>& settings);

/// Resolves `auto` values once, from what this process may use: ranks, isa, matmul, device, transport, fold. Origin
/// "resolved".
/// Then checks what needs all values: a batch that cannot be cut as asked, more ranks than lanes, values not built yet.
/// Throws ConfigError.
struct Machine {
  int cores = 1;
  bool avx512 = false, avx2 = false;
  bool amd = false;  // made by AMD
};
void resolve(Job& job, const Machine& machine);
/// Cores by affinity (and cgroup v2 cpu.max), and the ISA and maker of this processor.
Machine this_machine();

/// The complete job as TOML, a line a key with its origin as a comment (`explain`), or bare (job.toml of a run: parses
/// back to the same job).
std::string explain(const Job& job);
std::string to_toml(const Job& job);
/// Keys of the job proper that differ, one line each (what --resume refuses). What belongs to the layout ([layout],
/// [elastic] and [ps] but its mode and staleness), the name and the origins may differ.
std::vector<std::string> job_differences(const Job& a, const Job& b);
/// docs/job.md.
std::string job_reference();

}  // namespace tutti
