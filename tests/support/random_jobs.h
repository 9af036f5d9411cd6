// Jobs and layouts drawn from a seed: settings over the built-in mlp-points that the checks of a
// job let pass.
#pragma once

#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/job.h"
#include "config/job_parts.h"
#include "config/model_rules.h"
#include "model/make_model.h"
#include "optim/optimizer.h"
#include "plan/make/pipeline_schedule.h"
#include "support/layout_runs.h"
#include "support/small_data.h"
#include "train/rank_plan.h"

namespace tutti::testing_support {

class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  template <class T>
  T of(std::initializer_list<T> values) {
    return *(values.begin() + engine_() % values.size());
  }
  std::string of(std::initializer_list<const char*> values) {
    return *(values.begin() + engine_() % values.size());
  }
  std::string of(const std::vector<std::string>& values) {
    return values[engine_() % values.size()];
  }
  bool one_in(uint64_t n) { return engine_() % n == 0; }

 private:
  std::mt19937_64 engine_;
};

/// "train.lanes=4" and the like, as settings.
inline std::vector<Setting> as_settings(const Arguments& texts) {
  std::vector<Setting> settings;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    settings.push_back({text.substr(0, equals), text.substr(equals + 1)});
  }
  return settings;
}

/// Whether neither the job's rules nor the mesh's refuse it. `load` makes the job, before it is
/// resolved.
template <class Load>
bool legal(const Load& load) {
  try {
    Job job = load();
    resolve(job, this_machine(), {});
    const ModelShape shape = describe(make_model(job));
    const auto slots = static_cast<int>(make_optimizer(job.train)->slots().size());
    return mesh_faults(shape, mesh_options(job, shape, slots)).empty();
  } catch (const Error&) {
    return false;
  }
}

/// The files that jobs read, written once.
class RandomData {
 public:
  Arguments images() const { return images_; }
  std::string table() const { return "data.path=" + table_; }
  std::string text() const { return "data.path=" + text_; }

 private:
  TempFolder folder_;
  const Arguments images_ = write_images(folder_, "images", 60, 8, 4);
  const std::string table_ = write_table(folder_, "table.csv", 80);
  const std::string text_ = write_table(folder_, "text.txt", 60);
};

inline Arguments draw_gpt(Draw& draw, const RandomData& data) {
  Arguments s = {"model.kind=gpt", "model.heads=4", "model.context=" + draw.of({"4", "9", "16"})};
  s.push_back("model.layers=" + draw.of({"1", "2", "3", "4"}));
  s.push_back("model.width=" + draw.of({"16", "24", "32"}));
  s.push_back("model.kv_heads=" + draw.of({"0", "0", "2"}));
  s.push_back("model.tied=" + draw.of({"true", "false"}));
  s.push_back("model.bias=" + draw.of({"true", "true", "false"}));
  s.push_back("model.norm=" + draw.of({"layer", "rms"}));
  s.push_back("model.positions=" + draw.of({"learned", "rotary"}));
  s.push_back("model.activation=" + draw.of({"gelu", "gelu-tanh", "relu", "silu", "swiglu"}));
  if (draw.one_in(3))
    return s + Arguments{"data.kind=walk", "model.vocab=" + draw.of({"32", "64"})};
  return s + Arguments{"data.kind=text", data.text(), "model.vocab=280",
                       "data.tokenizer=" + draw.of({"bytes", "bpe"}),
                       "data.held_out=" + draw.of({"0.2", "7"})};
}

inline Arguments draw_images(Draw& draw, const RandomData& data) {
  Arguments s =
      Arguments{"data.kind=numpy", "model.image=[1, 8, 8]", "model.inputs=64", "model.classes=4"};
  s = s + data.images();
  s.push_back("data.scale=" + draw.of({"unit", "standardise", "min-max"}));
  s.push_back("data.held_out=" + draw.of({"0.2", "9"}));
  if (draw.one_in(4)) s.push_back("data.resample=balanced");
  if (draw.one_in(2)) s = s + Arguments{"augment.crop=1", "augment.flip=0.5", "augment.rotate=10"};
  if (draw.one_in(3))
    s = s + Arguments{"augment.noise=0.1", "augment.cutout=2", "augment.brightness=0.2"};
  if (draw.one_in(4)) s.push_back("augment.mixup=0.3");
  return s;
}

inline Arguments draw_dense(Draw& draw, const RandomData& data) {
  Arguments s = {"model.kind=" + draw.of({"mlp", "mlp", "autoencoder"}),
                 "model.hidden=" + draw.of({"[16]", "[24, 8]", "[8, 16, 32, 8]"}), "model.latent=4",
                 "model.norm=" + draw.of({"none", "layer", "rms", "batch"}),
                 "model.activation=" + draw.of({"relu", "tanh", "leaky-relu", "elu", "sigmoid"})};
  if (draw.one_in(2)) return s + draw_images(draw, data);
  if (draw.one_in(2)) return s + Arguments{"data.kind=points", "model.inputs=6", "model.classes=4"};
  return s + Arguments{"data.kind=csv",
                       data.table(),
                       "data.held_out=0.2",
                       "data.outliers=clip",
                       "model.inputs=4",
                       "model.classes=2",
                       "data.columns=[\"size: number standardise\", \"colour: one-hot "
                       "red|green|blue\", \"kind: target "
                       "no|yes\"]"};
}

inline Arguments draw_wide(Draw& draw, const RandomData& data) {
  Arguments s = {"model.kind=wide-deep", "model.embedding=4",
                 "model.hidden=" + draw.of({"[8]", "[16, 8]"})};
  if (draw.one_in(2)) return s + Arguments{"data.kind=clicks"};
  s.push_back("data.resample=" + draw.of({"none", "column"}));
  return s + Arguments{"data.kind=csv", data.table(), "data.held_out=0.2",
                       "data.columns=[\"size: number min-max\", \"colour: category "
                       "red|green|blue\", \"city: category "
                       "hash=16\", \"share: target\", \"weight: weight\"]"};
}

inline Arguments draw_cnn(Draw& draw, const RandomData& data) {
  return Arguments{"model.kind=cnn",
                   "model.channels=" + draw.of({"[4]", "[4, 8]"}),
                   "model.depth=" + draw.of({"1", "1", "2"}),
                   "model.residual=" + draw.of({"true", "false"}),
                   "model.norm=" + draw.of({"batch", "group", "layer", "none"}),
                   "model.pool=" + draw.of({"max", "average"})} +
         draw_images(draw, data);
}

/// How it is trained, whatever it is.
inline Arguments draw_training(Draw& draw) {
  const std::string optimizer = draw.of(names_of<OptimizerPart>());
  Arguments s = {"train.steps=" + draw.of({"4", "5", "6"}),
                 "train.seed=" + draw.of({"1", "2", "3"}),
                 "train.lanes=" + draw.of({"1", "2", "3", "4", "5", "8"}),
                 "train.micro_batches=" + draw.of({"1", "1", "2", "3"}),
                 "train.micro_batch_size=" + draw.of({"1", "2", "3", "4"}),
                 "train.tensor_slices=" + draw.of({"1", "1", "2", "4"}),
                 "train.optimizer=" + optimizer,
                 "train.lr=0.01",
                 "train.warmup=" + draw.of({"0", "2"}),
                 "train.weight_decay=" + draw.of({"0", "0.1"}),
                 "train.clip=" + draw.of({"0", "0.1", "1"}),
                 "train.clip_by=" + draw.of({"norm", "unit", "value"}),
                 "train.eval_every=" + draw.of({"0", "2", "2"}),
                 "train.eval_batches=1",
                 "train.checkpoint_every=" + draw.of({"0", "2"}),
                 "model.dropout=" + draw.of({"0", "0", "0.2"}),
                 "model.init=" + draw.of({"normal", "he-normal", "glorot-uniform", "orthogonal"}),
                 "train.schedule=" + draw.of(names_of<SchedulePart>())};
  const OptimizerPart& part = part_named<OptimizerPart>(optimizer);
  if (part.momentum) s.push_back("train.momentum=0.9");
  if (part.nesterov) s.push_back("train.nesterov=" + draw.of({"true", "false"}));
  if (draw.one_in(3)) s.push_back("train.groups=[\"*weight weight_decay=0 lr=0.5\"]");
  if (draw.one_in(3)) s.push_back("numerics.order=micro");
  s.push_back("numerics.matmul=" + draw.of({"own", "mkl"}));
  if (draw.one_in(6)) s.push_back("model.autograd=true");
  if (draw.one_in(5)) s.push_back("loss.label_smoothing=0.1");
  if (draw.one_in(6)) s.push_back("train.keep_best=true");
  return s;
}

/// One path for all ranks or one for each, of those that every processor with AVX2 has.
inline std::string draw_isa(Draw& draw, int ranks) {
  if (!draw.one_in(3)) return "auto";
  std::string all = draw.of({"portable", "avx2"});
  if (draw.one_in(2))
    for (int r = 1; r < ranks; ++r) all += "," + draw.of({"auto", "portable", "avx2"});
  return all;
}

/// Every key of a layout, so that one replaces another whole when a run goes on with it.
inline Arguments draw_layout(Draw& draw) {
  const int data = draw.of({1, 1, 2, 2, 3, 4, 5}), tensor = draw.of({1, 1, 1, 2, 4}),
            pipeline = draw.of({1, 1, 2, 3, 4});
  const int zero = draw.of({0, 0, 1, 2, 3}), ranks = data * tensor * pipeline;
  const std::string schedule = pipeline > 1 ? draw.of(names_of<PipelinePart>()) : plain_schedule();
  const PipelinePart& order = part_named<PipelinePart>(schedule);
  const bool threads = draw.one_in(2);
  return {
      fmt::format("layout.ranks={}", ranks),
      fmt::format("layout.tensor={}", tensor),
      fmt::format("layout.pipeline={}", pipeline),
      fmt::format("layout.zero={}", zero),
      "layout.shards=" + (zero > 0 ? draw.of({"0", "0", "1", "2"}) : "0"),
      "layout.depth=" + (zero == 3 ? draw.of({"1", "2", "4"}) : "1"),
      "layout.schedule=" + schedule,
      "layout.chunks=" + (order.chunks == 0 ? draw.of({"2", "3"}) : "2"),
      "layout.in_flight=" + (order.splits ? draw.of({"0", "0", "2", "5"}) : "0"),
      "layout.recompute=" + draw.of({"none", "none", "selective", "full"}),
      "layout.offload=" + draw.of({"none", "none", "none", "optimizer", "all"}),
      "layout.fold=" + draw.of({"auto", "local", "owner", "root"}),
      "layout.overlap=" + draw.of({"true", "false"}),
      "layout.bucket_floats=" + draw.of({"1", "100", "1000", "262144"}),
      "layout.connections=" + draw.of({"1", "2", "3"}),
      fmt::format("layout.hosts={}", draw.of({1, 1, 2, ranks})),
      "layout.partition=" + draw.of({"lanes", "lanes", "even", "round-robin", "hash", "feature"}),
      "layout.workers=" + std::string(threads ? "thread" : "process"),
      "layout.isa=" + draw_isa(draw, ranks),
      "layout.transport=" + (threads ? draw.of({"inproc", "tcp"}) : draw.of({"shm", "tcp"}))};
}

inline Arguments draw_job(Draw& draw, const RandomData& data) {
  const auto kind = draw.of({&draw_gpt, &draw_gpt, &draw_dense, &draw_wide, &draw_cnn});
  return Arguments{"numerics.device=cpu"} + draw_training(draw) + kind(draw, data);
}

/// A job, a layout of at most 5 ranks, and sometimes another one with which the run goes on.
struct RandomCase {
  Arguments job, layout, resumed;  ///< settings; resumed is empty where the run is not stopped
  int64_t stop_at = 0;
};

inline RandomCase draw_case(uint64_t seed, const RandomData& data) {
  constexpr int64_t kMostRanks = 5;
  constexpr int kTries = 40;  // layouts that may be refused before the job is given up
  Draw draw(seed);
  for (;;) {
    RandomCase drawn{
        .job = draw_job(draw, data), .layout = {}, .resumed = {}, .stop_at = draw.of({1, 2, 3})};
    const auto legal_with = [&](const Arguments& layout) {
      return legal([&] {
        Job job = load_job("mlp-points", as_settings(drawn.job + layout));
        if (job.layout.ranks > kMostRanks) throw Error("too many");
        const bool classes = job.data.kind == "points" || job.data.kind == "numpy";
        if (job.layout.partition == PartitionKind::kFeature && !classes)
          throw Error("there is no class to part by");
        return job;
      });
    };
    const auto draw_legal = [&]() -> Arguments {
      for (int tries = 0; tries < kTries; ++tries)
        if (Arguments layout = draw_layout(draw); legal_with(layout)) return layout;
      return {};
    };
    if (!legal_with({"layout.ranks=1"})) continue;
    drawn.layout = draw_legal();
    if (drawn.layout.empty()) continue;
    if (draw.one_in(3)) drawn.resumed = draw_legal();
    return drawn;
  }
}

}  // namespace tutti::testing_support
