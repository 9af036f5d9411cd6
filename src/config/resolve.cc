// Turns `auto` values into values, then checks what needs more than one of them. Every fault is collected.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "config/job.h"
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
  void model();
  void data();
  void train();
  void numerics(const Machine& machine);
  void layout();

  std::vector<std::string> faults;

 private:
  const Job& job_;
};

// A C++ program may have set any field to anything.
void Check::values() {
  for (const auto& key : keys()) {
    if (const std::string text = fault_of(key, key.get(job_)); !text.empty()) fault({key.full_name().c_str()}, text);
  }
}

void Check::model() {
  const auto& model = job_.model;
  if (model.kind == "gpt" && model.heads > 0 && model.width % model.heads != 0) {
    fault({"model.width", "model.heads"},
          fmt::format("model.width = {} cannot be cut into model.heads = {}: a head is a whole number of elements",
                      model.width, model.heads));
  }
  if (model.kind == "mlp" && model.tied) {
    fault({"model.tied"}, "model.tied = true but model.kind = \"mlp\": it has no embedding to tie its head to");
  }
  if (model.kind == "mlp" && model.dropout > 0) {
    fault({"model.dropout"},
          fmt::format("model.dropout = {} but model.kind = \"mlp\": it has no dropout", model.dropout));
  }
}

void Check::data() {
  const auto& [kind, path, held_out] = std::tie(job_.data.kind, job_.data.path, job_.data.held_out);
  const bool tokens = kind == "text" || kind == "walk";
  if ((job_.model.kind == "gpt" && !tokens) || (job_.model.kind == "mlp" && kind != "points")) {
    fault({"data.kind", "model.kind"},
          fmt::format("data.kind = \"{}\" but model.kind = \"{}\": it reads {}", kind, job_.model.kind,
                      job_.model.kind == "gpt" ? "\"text\" or \"walk\"" : "\"points\""));
  }
  if (job_.model.kind == "gpt" && kind == "text" && job_.model.vocab < 256) {
    fault({"model.vocab", "data.kind"},
          fmt::format("model.vocab = {} but data.kind = \"text\": bytes need 256", job_.model.vocab));
  }
  if (kind == "text" && path.empty()) fault({"data.path"}, "data.path is empty but data.kind = \"text\": name a file");
  if (job_.train.eval_batches > 0 && held_out <= 0) {
    fault({"data.held_out", "train.eval_batches"},
          fmt::format("data.held_out = 0 but train.eval_batches = {}: nothing is kept to evaluate on; set "
                      "train.eval_batches = 0 for no evaluation",
                      job_.train.eval_batches));
  }
}

void Check::train() {
  const auto& train = job_.train;
  if (train.eval_every > 0 && train.eval_batches == 0) {
    fault(
        {"train.eval_every", "train.eval_batches"},
        fmt::format("train.eval_every = {} but train.eval_batches = 0: nothing would be evaluated", train.eval_every));
  }
  if (train.optimizer != "sgd" && (train.momentum != 0 || train.nesterov)) {
    fault(
        {"train.momentum", "train.nesterov", "train.optimizer"},
        fmt::format("train.momentum and train.nesterov are of \"sgd\", but train.optimizer = \"{}\"", train.optimizer));
  } else if (train.nesterov && train.momentum == 0) {
    fault({"train.nesterov"}, "train.nesterov = true but train.momentum = 0: there is no momentum to look ahead by");
  }
  if (train.sample_bytes > 0 && job_.model.kind == "mlp") {
    fault({"train.sample_bytes"},
          fmt::format("train.sample_bytes = {} but model.kind = \"mlp\": it writes no text", train.sample_bytes));
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

void resolve(Job& job, const Machine& machine) {
  const auto settle = [&](const char* name, auto& field, const auto& automatic, const auto& value) {
    if (field != automatic) return;
    field = value;
    job.origin[name] = "resolved";
  };
  const std::string automatic = "auto";
  settle("layout.ranks", job.layout.ranks, 0, std::max<int64_t>(1, std::min<int64_t>(machine.cores, job.train.lanes)));
  settle("layout.transport", job.layout.transport, automatic, job.layout.workers == "thread" ? "inproc" : "shm");
  settle("layout.fold", job.layout.fold, automatic, "local");
  settle("numerics.device", job.numerics.device, automatic, "cpu");
  settle("numerics.isa", job.numerics.isa, automatic, machine.avx512 ? "avx512" : "avx2");
  settle("numerics.matmul", job.numerics.matmul, automatic, machine.amd && machine.avx512 ? "own" : "mkl");

  Check check(job);
  check.values();
  check.model();
  check.data();
  check.train();
  check.numerics(machine);
  check.layout();
  if (!check.faults.empty()) throw ConfigError(std::move(check.faults));
}

}  // namespace tutti
