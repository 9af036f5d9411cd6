// Whether ranks, lanes and columns make up the mesh that a job asks for, and what a mesh does not
// go with. A refusal names the nearest values that work.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "base/text/lists.h"
#include "config/check/job_check.h"
#include "config/job_parts.h"
#include "config/schema.h"

namespace tutti {

namespace {

constexpr size_t kNamed = 4;  // values that a refusal names

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> found;
  for (int64_t low = 1; low * low <= number; ++low) {
    if (number % low != 0) continue;
    found.push_back(low);
    if (low * low != number) found.push_back(number / low);
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// "pipeline = 1, 2 or 4": those of `values` (ascending) that are nearest to what was asked for; ""
/// without any.
std::string nearest_values(std::string_view name, int64_t asked, std::vector<int64_t> values) {
  if (values.empty()) return "";
  std::stable_sort(values.begin(), values.end(),
                   [&](int64_t a, int64_t b) { return std::abs(a - asked) < std::abs(b - asked); });
  if (values.size() > kNamed) values.resize(kNamed);
  std::sort(values.begin(), values.end());
  std::vector<std::string> words;
  for (int64_t value : values) words.push_back(fmt::format("{}", value));
  return fmt::format("{} = {}", name, listed(words, "or"));
}

/// "; these work: pipeline = 1, 2 or 4; ranks = 3 or 6".
std::string these_work(std::vector<std::string> ways) {
  std::erase(ways, "");
  return ways.empty() ? "" : fmt::format("; these work: {}", fmt::join(ways, "; "));
}

std::string setting(const Job& job, const Key& key) {
  return fmt::format("{} = {}", key.full_name(), value_text(key.get(job)));
}

}  // namespace

bool model_may_refuse(const Job& job) {
  const LayoutConfig& layout = job.layout;
  return layout.tensor > 1 || layout.pipeline > 1 || layout.offload != Offload::kNone ||
         layout.fold == FoldKind::kOwner || job.train.tensor_slices > 1;
}

std::string connecting(Workers workers) {
  return quoted_list(names_where<TransportPart>(
                         [&](const TransportPart& part) { return connects(part, workers); }),
                     "or");
}

std::string without_idle(const Job& job) {
  std::vector<std::string> idle;
  for (const Key& key : keys())
    if (key.get(job) != key.fallback && !key.idle_reason(job).empty())
      idle.push_back(key.full_name());
  return idle.empty() ? "" : fmt::format(" without {}", fmt::join(idle, " and "));
}

void JobCheck::idle_keys() {
  for (const Key& key : keys()) {
    const std::string reason = key.idle_reason(job_);
    if (reason.empty() || key.get(job_) == key.fallback) continue;
    fault({key.full_name().c_str()},
          fmt::format("{} but {}; leave it out", setting(job_, key), reason));
  }
}

void JobCheck::model_columns() {
  const int64_t columns = job_.train.tensor_slices;
  const std::string& kind = job_.model.kind;
  if (columns <= 1) return;
  if (!model_part(job_).columns) {
    const auto cut = names_where<ModelPart>(&ModelPart::columns);
    return fault({"train.tensor_slices", "model.kind"},
                 fmt::format("train.tensor_slices = {} but model.kind = \"{}\": {} are defined in "
                             "columns; these work: tensor_slices = 1",
                             columns, kind, quoted_list(cut, "and")));
  }
  if (!rules_.cut_sizes) return;
  const auto sizes = rules_.cut_sizes(job_);
  int64_t common = 0;
  for (const auto& [name, size] : sizes) {
    if (size <= 0) return;  // named by values()
    common = std::gcd(common, size);
  }
  for (const auto& [name, size] : sizes) {
    if (size % columns == 0) continue;
    fault({"train.tensor_slices", name.c_str()},
          fmt::format("{} = {} cannot be cut into train.tensor_slices = {}{}", name, size, columns,
                      these_work({nearest_values("tensor_slices", columns, divisors(common))})));
  }
}

void JobCheck::mesh() {
  const LayoutConfig& layout = job_.layout;
  const int64_t lanes = job_.train.lanes, columns = job_.train.tensor_slices;
  const auto counts = [](int64_t axis) { return axis >= 1 && axis <= 65536; };
  // named by values()
  if (!counts(layout.ranks) || !counts(layout.tensor) || !counts(layout.pipeline)) return;
  if (layout.tensor > columns) {
    fault({"layout.tensor", "train.tensor_slices"},
          fmt::format("layout.tensor = {} but train.tensor_slices = {}: a rank owns at least one "
                      "column; ask for at most {}, or for more columns, which is another job",
                      layout.tensor, columns, columns));
  }
  const int64_t shares = layout.tensor * layout.pipeline, data = layout.ranks / shares;
  if (layout.ranks % shares != 0) return uneven_mesh();
  if (data > lanes && shares == 1) {
    fault({"layout.ranks", "train.lanes"},
          fmt::format("layout.ranks = {} but train.lanes = {}: a rank owns at least one lane; ask "
                      "for at most {} ranks, or for more lanes, which is another job",
                      layout.ranks, lanes, lanes));
  } else if (data > lanes) {
    fault({"layout.ranks", "layout.tensor", "layout.pipeline", "train.lanes"},
          fmt::format("layout.ranks = {} with layout.tensor x layout.pipeline = {} x {} has {} "
                      "data ranks but train.lanes = {}: a data rank owns at least one lane; ask "
                      "for at most {} ranks, or for more lanes, which is another job",
                      layout.ranks, layout.tensor, layout.pipeline, data, lanes, lanes * shares));
  }
  if (layout.zero > 0 && layout.shards > 0 && data % layout.shards != 0) {
    fault({"layout.shards", "layout.ranks"},
          fmt::format("layout.shards = {} with {} data ranks: every slice has as many replicas as "
                      "the others{}",
                      layout.shards, data,
                      these_work({nearest_values("shards", layout.shards, divisors(data))})));
  }
}

void JobCheck::uneven_mesh() {
  const LayoutConfig& layout = job_.layout;
  const int64_t blocks = rules_.most_stages ? rules_.most_stages(job_) : INT64_MAX;

  // A mesh works if its ranks make whole replicas with at least one lane each, and if no other
  // check would refuse it.
  const auto works = [&](int64_t ranks, int64_t tensor, int64_t pipeline) {
    const int64_t shares = tensor * pipeline;
    Job other = job_;
    other.layout.ranks = ranks, other.layout.tensor = tensor, other.layout.pipeline = pipeline;
    return without_idle(other).empty() && ranks >= layout.hosts && pipeline <= blocks &&
           tensor <= job_.train.tensor_slices && ranks > 0 && ranks % shares == 0 &&
           ranks / shares <= job_.train.lanes;
  };

  // Only one number is changed at a time, so that the nearest value of each can be offered by
  // itself.
  std::vector<int64_t> tensors, pipelines, ranks;
  for (int64_t part : divisors(layout.ranks)) {
    if (layout.tensor > 1 && works(layout.ranks, part, layout.pipeline)) tensors.push_back(part);
    if (layout.pipeline > 1 && works(layout.ranks, layout.tensor, part)) pipelines.push_back(part);
  }
  const int64_t shares = layout.tensor * layout.pipeline, below = layout.ranks / shares * shares;
  for (int64_t many : {below, below + shares}) {
    if (works(many, layout.tensor, layout.pipeline)) ranks.push_back(many);
  }

  // The fault repeats what was set: one axis, or both.
  const std::string asked = layout.pipeline == 1 ? setting(job_, key_named("layout.tensor"))
                            : layout.tensor == 1
                                ? setting(job_, key_named("layout.pipeline"))
                                : fmt::format("layout.tensor x layout.pipeline = {} x {}",
                                              layout.tensor, layout.pipeline);
  fault(
      {"layout.pipeline", "layout.tensor", "layout.ranks"},
      fmt::format(
          "{} with layout.ranks = {}: data ranks are ranks / (tensor x pipeline), a whole number{}",
          asked, layout.ranks,
          these_work({nearest_values("tensor", layout.tensor, tensors),
                      nearest_values("pipeline", layout.pipeline, pipelines),
                      nearest_values("ranks", layout.ranks, ranks)})));
}

void JobCheck::with_mesh() {
  const LayoutConfig& layout = job_.layout;
  if (layout.fold == FoldKind::kOwner && job_.train.micro_batches > 1 &&
      job_.numerics.order != SumOrder::kMicro) {
    fault({"layout.fold", "train.micro_batches"},
          fmt::format("layout.fold = \"owner\" but train.micro_batches = {} and numerics.order = "
                      "\"lane\": a lane's sum is not there until its last micro-batch; these work: "
                      "fold = \"local\"; micro_batches = 1; order = \"micro\" (the last two are "
                      "another job)",
                      job_.train.micro_batches));
  }

  // ZeRO gives each rank slices, which not every optimizer can update by themselves.
  if (layout.zero > 0 && !part_named<OptimizerPart>(job_.train.optimizer).sliced) {
    Job whole = job_;
    whole.layout.zero = 0;
    fault({"layout.zero", "train.optimizer"},
          fmt::format("layout.zero = {} but train.optimizer = \"{}\": its steps go by norms of "
                      "whole parameters, and a rank holds slices; these work: zero = 0{}",
                      layout.zero, job_.train.optimizer, without_idle(whole)));
  }

  // A cut names where every chunk but the first begins.
  if (!layout.cut.empty() && layout.pipeline > 1) {
    const int fixed = part_named<PipelinePart>(layout.schedule).chunks;
    const int64_t chunks = fixed > 0 ? fixed : layout.chunks;
    const int64_t named = 1 + std::count(layout.cut.begin(), layout.cut.end(), ','),
                  parts = layout.pipeline * chunks;
    if (named != parts - 1) {
      fault({"layout.cut", "layout.pipeline"},
            fmt::format(
                "layout.cut names {} beginnings but {} stages of {} parts have {} after the first",
                named, layout.pipeline, chunks, parts - 1));
    }
  }
  // These sum whole gradients of one data rank each, once in a step.
  if (layout.fold == FoldKind::kRoot) {
    refuse_together("layout.fold", "a root sums whole gradients once in a step", "fold = \"local\"",
                    {"layout.zero", "layout.tensor", "layout.pipeline", "numerics.order"});
  }
  if (job_.numerics.reduce == ReduceKind::kRing) {
    refuse_together("numerics.reduce", "a ring sums whole gradients once in a step",
                    "reduce = \"exact\"",
                    {"layout.zero", "layout.tensor", "layout.pipeline", "numerics.order",
                     "train.tensor_slices"});
  }
  if (layout.partition != PartitionKind::kLanes) {
    refuse_together("layout.partition", "records are exchanged between data ranks alone",
                    "partition = \"lanes\"", {"layout.tensor", "layout.pipeline"});
  }
}

/// Refuses what the job has under `asked` together with the first of the `others` that is on. Both
/// ways out are named.
void JobCheck::refuse_together(const char* asked, const char* why, const char* works,
                               std::initializer_list<const char*> others) {
  const Key& key = key_named(asked);
  for (const char* name : others) {
    const Key& other = key_named(name);
    if (other.get(job_) == other.off || other.get(job_) == other.fallback) continue;
    Job without = job_;
    other.set(without, other.off);
    return fault({asked, name},
                 fmt::format("{} but {}: {}; these work: {}; {} = {}{}{}", setting(job_, key),
                             setting(job_, other), why, works, other.name, value_text(other.off),
                             without_idle(without), other.layout ? "" : " (which is another job)"));
  }
}

void JobCheck::layout() {
  const auto& layout = job_.layout;
  mesh();
  idle_keys();
  with_mesh();

  // Every host has a rank, and the transport reaches ranks of this kind.
  if (layout.hosts > layout.ranks) {
    fault({"layout.hosts", "layout.ranks"},
          fmt::format("layout.hosts = {} but layout.ranks = {}: a host has at least one rank",
                      layout.hosts, layout.ranks));
  }
  const TransportPart& transport = part_named<TransportPart>(layout.transport);
  if (!transport.processes && layout.workers == Workers::kProcess) {
    fault(
        {"layout.transport", "layout.workers"},
        fmt::format("layout.transport = \"{0}\" but layout.workers = \"process\": {0} reaches only "
                    "threads of one process; use {1}",
                    layout.transport, connecting(layout.workers)));
  }
  if (!transport.threads && !transport.gpu && layout.workers == Workers::kThread) {
    fault(
        {"layout.transport", "layout.workers"},
        fmt::format("layout.transport = \"{}\" but layout.workers = \"thread\": threads share all "
                    "their memory; use {}",
                    layout.transport, connecting(layout.workers)));
  }

  // Ranks that listen take consecutive ports.
  constexpr int64_t kLastPort = 65535;
  const bool listens = transport.listens || layout.hosts > 1;
  if (listens && layout.port > 0 && layout.port <= kLastPort &&
      layout.port + layout.ranks - 1 > kLastPort) {
    fault({"layout.port", "layout.ranks"},
          fmt::format("layout.port = {} with layout.ranks = {}: rank r listens on port + r, and "
                      "the last port is {}; ask for at most {}, or for 0, which is any free one",
                      layout.port, layout.ranks, kLastPort, kLastPort + 1 - layout.ranks));
  }
  if (layout.address.empty())
    fault({"layout.address"}, "layout.address is empty: name an address to listen on");
}

}  // namespace tutti
