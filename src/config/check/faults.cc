// What needs more than one value of a job to be judged: the model, the loss and training (data.cc
// has the data, device.cc what computes, layout.cc the mesh). Every fault is collected.
#include "config/check/faults.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/check/job_check.h"
#include "config/check/parameter_groups.h"
#include "config/isa.h"
#include "config/job_parts.h"
#include "config/model_rules.h"
#include "config/schema.h"

namespace tutti {

namespace {

/// Whether a loss goes with a model that needs one of its kind.
bool goes_with(const LossPart& loss, LossNeed need) {
  switch (need) {
    case LossNeed::kAny:
      return true;
    case LossNeed::kClasses:
      return loss.classes;
    case LossNeed::kValues:
      return !loss.classes;
    case LossNeed::kReconstruction:
      return loss.reconstructs;
  }
  return true;
}

/// An option that only some optimizers read is refused with the others, which would ignore it.
void check_optimizer(const TrainConfig& train, const AddFault& fault) {
  const OptimizerPart& optimizer = part_named<OptimizerPart>(train.optimizer);
  const auto of = [&](const char* key, bool OptimizerPart::*has) {
    fault({key, "train.optimizer"},
          fmt::format("{} is of {}, but train.optimizer = \"{}\"", key,
                      quoted_list(names_where<OptimizerPart>(has), "and"), train.optimizer));
  };
  if (train.momentum != 0 && !optimizer.momentum) of("train.momentum", &OptimizerPart::momentum);

  // Nesterov's step looks ahead by the momentum, so it needs one.
  if (train.nesterov && !optimizer.nesterov) {
    of("train.nesterov", &OptimizerPart::nesterov);
  } else if (train.nesterov && train.momentum == 0) {
    fault({"train.nesterov"},
          "train.nesterov = true but train.momentum = 0: there is no momentum to look ahead by");
  }
}

/// What goes by evaluations needs some before the run ends, and a baseline must be one that the
/// data offers.
void check_evaluations(const Job& job, const AddFault& fault) {
  const TrainConfig& train = job.train;
  if (goes_by_evaluations(job) && train.eval_every == 0) {
    const bool watches = part_named<SchedulePart>(train.schedule).watches;
    fault({"train.schedule", "train.early_stop", "train.keep_best", "train.eval_every"},
          fmt::format("{} goes by evaluations, but train.eval_every = 0",
                      watches ? fmt::format("train.schedule = \"{}\"", train.schedule)
                      : train.early_stop > 0 ? "train.early_stop"
                                             : "train.keep_best"));
  }
  if (const BaselineKind offered = baseline_offered(job);
      train.baseline != BaselineKind::kNone && train.baseline != offered) {
    fault(
        {"train.baseline", "data.kind", "data.tokenizer"},
        fmt::format("train.baseline = \"{}\": data.kind = \"{}\" with data.tokenizer = \"{}\" "
                    "has none such, it has {}",
                    name_of(train.baseline), job.data.kind, job.data.tokenizer, name_of(offered)));
  }
}

/// The sample at the end needs a known text, a vocabulary with all bytes, a model that writes, and
/// a prompt. Only the first of these that is missing is named.
void check_sample(const Job& job, const AddFault& fault) {
  const TrainConfig& train = job.train;
  if (train.sample_bytes <= 0) return;

  // What a built-in job says does not keep its model from being cut into columns or replaced by a
  // program's own; the run then tells that there is no sample.
  const bool said = job.origin_of("train.sample_bytes").is_said();
  const DataPart& data = data_part(job);
  const ModelPart& model = model_part(job);
  if (data.unreadable) {
    fault({"train.sample_bytes", "data.kind"},
          fmt::format("train.sample_bytes = {} but data.kind = \"{}\": what text they stand for is "
                      "not known",
                      train.sample_bytes, job.data.kind));
  } else if (data.generated && data.gives.tokens && job.model.vocab < 256) {
    fault({"train.sample_bytes", "model.vocab"},
          fmt::format(
              "train.sample_bytes = {} but model.vocab = {}: a prompt is bytes, which need 256",
              train.sample_bytes, job.model.vocab));
  } else if (!model.sequences && (said || !model.foreign)) {
    fault({"train.sample_bytes"},
          fmt::format("train.sample_bytes = {} but model.kind = \"{}\": it writes no text",
                      train.sample_bytes, job.model.kind));
  } else if (train.tensor_slices > 1 && said) {
    fault({"train.sample_bytes", "train.tensor_slices"},
          fmt::format("train.sample_bytes = {} but train.tensor_slices = {}: a model in columns "
                      "writes no text",
                      train.sample_bytes, train.tensor_slices));
  } else if (train.prompt.empty()) {
    fault({"train.sample_bytes"},
          fmt::format(
              "train.sample_bytes = {} but train.prompt is empty: a sample starts from a prompt",
              train.sample_bytes));
  }
}

}  // namespace

void JobCheck::fault(std::initializer_list<const char*> names, const std::string& text) {
  for (const char* name : names) {
    const Origin origin = job_.origin_of(name);
    if (origin.kind == Origin::Kind::kFile) return faults.push_back(origin.place + ": " + text);
  }
  faults.push_back(text);
}

// A C++ program may have set any field to anything.
void JobCheck::values() {
  const auto misplaced = [](char c) { return c == '/' || static_cast<unsigned char>(c) < ' '; };
  if (std::any_of(job_.name.begin(), job_.name.end(), misplaced)) {
    fault({"name"},
          fmt::format(
              "name = {:?}: a run's folder has this name, so no slashes and no control characters",
              job_.name));
  }
  for (const auto& key : keys()) {
    if (const std::string text = fault_of(key, key.get(job_)); !text.empty())
      fault({key.full_name().c_str()}, text);
  }
}

// Of a program's own model nothing is known.
void JobCheck::missing() {
  const ModelPart& model = model_part(job_);
  if (model.foreign) return;
  if (job_.model.tied && !model.tied)
    fault({"model.tied"},
          fmt::format(
              "model.tied = true but model.kind = \"{}\": it has no embedding to tie its head to",
              job_.model.kind));
  if (job_.model.activation == Activation::kSwiglu && !model.gated) {
    const auto gated = names_where<ModelPart>(&ModelPart::gated);
    fault({"model.activation"},
          fmt::format("model.activation = \"swiglu\" but model.kind = \"{}\": it is the gated "
                      "layer of {}",
                      job_.model.kind, quoted_list(gated, "and")));
  }
}

void JobCheck::norm() {
  const std::vector<NormKind>& allowed = model_part(job_).norms;
  const NormKind norm = job_.model.norm;
  if (allowed.empty() || std::find(allowed.begin(), allowed.end(), norm) != allowed.end()) return;
  std::vector<std::string> names;
  for (NormKind kind : allowed) names.emplace_back(name_of(kind));
  fault({"model.norm", "model.kind"},
        fmt::format("model.norm = \"{}\" but model.kind = \"{}\": it takes {}", norm,
                    job_.model.kind, quoted_list(names, "or")));
}

void JobCheck::model() {
  // The model's own code knows which of its sizes fit together.
  const auto& model = job_.model;
  missing();
  if (rules_.check)
    rules_.check(job_, [this](std::initializer_list<const char*> keys, const std::string& text) {
      fault(keys, text);
    });
  norm();

  // Images have three sizes whatever reads them, and files are decoded to one or three channels.
  if (model.image.size() != 3) {
    fault({"model.image"}, "model.image must have three values: channels, height and width");
  } else if (data_part(job_).decoded && model.image[0] != 1 && model.image[0] != 3) {
    fault(
        {"model.image"},
        fmt::format("model.image has {} channels: PNG and JPEG are read as 1 (grey) or 3 (colour)",
                    model.image[0]));
  }
  if (model.init_only != "*" && model.init_from.empty()) {
    fault({"model.init_only"}, "model.init_only picks from model.init_from, which is empty");
  }
}

void JobCheck::loss() {
  const auto& loss = job_.loss;
  const ModelPart& model = model_part(job_);
  const LossPart& part = loss_part(job_);
  const bool classes = part.classes;
  const auto class_losses = names_where<LossPart>(&LossPart::classes);

  // The model says which losses go with it, and the data whether its targets are classes.
  if (!goes_with(part, model.losses)) {
    const auto fits = names_where<LossPart>(
        [&](const LossPart& other) { return goes_with(other, model.losses); });
    fault({"loss.kind", "model.kind"},
          fmt::format("loss.kind = \"{}\" but model.kind = \"{}\": it takes {}", loss.kind,
                      job_.model.kind, quoted_list(fits, "or")));
  }
  if (!classes && (loss.label_smoothing > 0 || !loss.class_weights.empty())) {
    fault({"loss.label_smoothing", "loss.class_weights", "loss.kind"},
          fmt::format("loss.label_smoothing and loss.class_weights are of {}, but loss.kind = "
                      "\"{}\"",
                      quoted_list(class_losses, "and"), loss.kind));
  }
  if (!classes && data_part(job_).only_classes && model.losses == LossNeed::kAny &&
      !model.foreign) {
    fault({"loss.kind", "data.kind"},
          fmt::format("loss.kind = \"{}\" but data.kind = \"{}\": its targets are classes; use {}",
                      loss.kind, job_.data.kind, quoted_list(class_losses, "or")));
  }

  // There is one weight per class, and at least one of them is not zero.
  const int64_t many = model.sequences ? job_.model.vocab : job_.model.classes;
  if (!loss.class_weights.empty() && static_cast<int64_t>(loss.class_weights.size()) != many) {
    fault({"loss.class_weights"}, fmt::format("loss.class_weights has {} weights for {} classes",
                                              loss.class_weights.size(), many));
  }
  const auto zero = [](double weight) { return weight == 0; };
  if (!loss.class_weights.empty() &&
      std::all_of(loss.class_weights.begin(), loss.class_weights.end(), zero)) {
    fault({"loss.class_weights"}, "loss.class_weights are all 0: nothing would be learned");
  }

  // A teacher is named for the losses that ask one, and for no other.
  if (part.taught != !loss.teacher.empty()) {
    fault({"loss.teacher", "loss.kind"},
          loss.teacher.empty()
              ? fmt::format("loss.kind = \"{}\" but loss.teacher is empty: name a run", loss.kind)
              : fmt::format("loss.teacher is set but loss.kind is not {}",
                            quoted_list(names_where<LossPart>(&LossPart::taught), "or")));
  }

  // Mixup mixes targets too, which must be one class per sample.
  if (job_.augment.mixup > 0 && (!classes || model.sequences)) {
    fault({"augment.mixup", "loss.kind"},
          "augment.mixup mixes classes of images; this job has none");
  }
}

void JobCheck::train() {
  const auto& train = job_.train;
  if (train.eval_every > 0 && train.eval_batches == 0) {
    fault(
        {"train.eval_every", "train.eval_batches"},
        fmt::format("train.eval_every = {} but train.eval_batches = 0: nothing would be evaluated",
                    train.eval_every));
  }
  const AddFault add = [this](std::initializer_list<const char*> keys, const std::string& text) {
    fault(keys, text);
  };
  check_optimizer(train, add);
  check_evaluations(job_, add);

  // The parser of the groups words its own faults.
  std::vector<std::string> texts;
  parse_groups(train.groups, texts);
  for (const std::string& text : texts) fault({"train.groups"}, text);

  check_sample(job_, add);
  model_columns();

  // Positions of samples are 64-bit numbers, which the product must not exceed.
  const double samples =
      static_cast<double>(train.lanes) * static_cast<double>(train.micro_batches) *
      static_cast<double>(train.micro_batch_size) * static_cast<double>(train.steps);
  if (samples > 1e18) {
    fault({"train.steps", "train.lanes", "train.micro_batches", "train.micro_batch_size"},
          fmt::format("train.steps = {} of {} x {} x {} samples are more than can be counted",
                      train.steps, train.lanes, train.micro_batches, train.micro_batch_size));
  }
}

void JobCheck::numerics(const Machine& machine) {
  // Ranks may be on other hosts, but one name is meant for this one, too.
  std::vector<std::string> faults;
  const std::vector<Isa> isas = parse_isa(job_.layout.isa, faults);
  if (isas.size() > 1 && isas.size() != static_cast<size_t>(job_.layout.ranks))
    faults.push_back(fmt::format("layout.isa names {} ranks, but layout.ranks = {}", isas.size(),
                                 job_.layout.ranks));
  if (isas.size() == 1) faults.push_back(missing_isa(isas.front(), machine.path));
  for (const std::string& found : faults)
    if (!found.empty()) fault({"layout.isa", "layout.ranks"}, found);
  if (job_.numerics.reduce == ReduceKind::kRing && job_.layout.fold == FoldKind::kRoot) {
    fault({"numerics.reduce", "layout.fold"},
          "layout.fold = \"root\" but numerics.reduce = \"ring\": a ring has no root that folds "
          "the tree");
  }
}

std::vector<std::string> faults_of(const Job& job, const Machine& machine,
                                   const ModelRules& rules) {
  JobCheck check(job, rules);
  check.values();
  check.model();
  check.loss();
  check.data();
  check.train();
  check.numerics(machine);
  check.device(machine);
  check.layout();
  return std::move(check.faults);
}

}  // namespace tutti
