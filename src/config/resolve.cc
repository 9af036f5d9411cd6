// Turns `auto` values into values, then has the whole checked.
#include <algorithm>

#include "base/error.h"
#include "config/check/faults.h"
#include "config/check/job_check.h"
#include "config/check/table_columns.h"
#include "config/job.h"
#include "config/job_parts.h"
#include "config/schema.h"

namespace tutti {

namespace {

/// What suits the model and the target.
std::string automatic_loss(const Job& job, const ColumnSizes& columns) {
  if (const std::string_view fixed = model_part(job).automatic_loss; !fixed.empty())
    return std::string(fixed);
  const bool number = columns.targets > 0 && columns.classes == 0;
  return std::string(first_where<LossPart>(
      [&](const LossPart& loss) { return number ? !loss.classes : loss.plain; }));
}

NormKind automatic_norm(const Job& job) {
  const std::vector<NormKind>& norms = model_part(job).norms;
  return norms.empty() ? NormKind::kNone : norms.front();
}

DeviceKind automatic_device(const Machine& machine) {
  return machine.gpus.empty() ? DeviceKind::kCpu : DeviceKind::kCuda;
}

/// As many whole replicas as there are places for: at least one, and at most one per lane.
int64_t automatic_ranks(const Job& job, int64_t places) {
  const auto axis = [](int64_t ranks) { return std::clamp<int64_t>(ranks, 1, 65536); };
  const int64_t replica = axis(job.layout.tensor) * axis(job.layout.pipeline);
  return std::clamp<int64_t>(places / replica, 1, std::max<int64_t>(1, job.train.lanes)) * replica;
}

/// ZeRO-1 moves the bytes that a sum to everybody does, and a rank updates only its slices: it is
/// faster wherever new parameters can be read in the windows of those who made them. By messages
/// they would come after the backward pass, which hides the gradients' way back.
int64_t automatic_zero(const Job& job) {
  const LayoutConfig& layout = job.layout;
  const int64_t data = layout.ranks / std::max<int64_t>(1, layout.tensor * layout.pipeline);
  const TransportPart& transport = part_named<TransportPart>(layout.transport);
  const bool windows = transport.windows && !transport.gpu;
  const bool sliced = part_named<OptimizerPart>(job.train.optimizer).sliced &&
                      layout.offload != Offload::kAll && layout.fold != FoldKind::kRoot &&
                      job.numerics.reduce == ReduceKind::kExact;
  return data > 1 && layout.hosts == 1 && windows && sliced ? 1 : 0;
}

/// Sizes that the columns of a table say, where the job does not.
void settle_sizes(Job& job, const ColumnSizes& columns) {
  const auto settle = [&](const char* name, int64_t& field, int64_t value) {
    if (value == 0 || job.origin_of(name).kind != Origin::Kind::kDefault) return;
    field = value;
    job.origin[name] = {Origin::Kind::kResolved};
  };
  settle("model.inputs", job.model.inputs, columns.numbers);
  settle("model.classes", job.model.classes, columns.classes);
  settle("model.outputs", job.model.outputs, columns.classes == 0 ? columns.targets : 0);
}

}  // namespace

void forget_idle_keys(Job& job, const Machine& machine) {
  const bool automatic = job.numerics.device == DeviceKind::kAuto;
  const bool cpu =
      (automatic ? automatic_device(machine) : job.numerics.device) == DeviceKind::kCpu;
  for (const Key& key : keys()) {
    const bool idle = (key.gpu && cpu) ||
                      (key.float16 && job.numerics.precision != Precision::kFloat16) ||
                      !key.idle_reason(job).empty();
    Origin& origin = job.origin[key.full_name()];
    if (!idle || origin.kind == Origin::Kind::kSetting) continue;
    key.set(job, key.fallback);
    origin = {};
  }

  // A run that began without the sample of its built-in job goes on without it.
  Origin& sample = job.origin["train.sample_bytes"];
  if (sample.kind == Origin::Kind::kFile) sample = {};
}

void resolve(Job& job, const Machine& machine, const ModelRules& rules) {
  const auto settle = [&](const char* name, auto& field, const auto& automatic, const auto& value) {
    if (field != automatic) return;
    field = value;
    job.origin[name] = {Origin::Kind::kResolved};
  };
  const std::string automatic = "auto";

  // The device comes first, since the number of ranks and the transport follow from it.
  settle("numerics.device", job.numerics.device, DeviceKind::kAuto, automatic_device(machine));
  const bool cuda = job.numerics.device == DeviceKind::kCuda;
  const int64_t places = cuda ? static_cast<int64_t>(machine.gpus.size()) : machine.cores;
  settle("layout.ranks", job.layout.ranks, 0, automatic_ranks(job, places));
  settle("layout.transport", job.layout.transport, automatic,
         std::string(automatic_transport(cuda, job.layout.workers)));

  // The columns of a table say sizes of the model, and whether the loss is one of classes. Their
  // faults are named by the check below.
  std::vector<std::string> ignored;
  const ColumnSizes columns = sizes_of(parse_columns(job.data.columns, ignored));
  if (ignored.empty()) settle_sizes(job, columns);
  settle("model.norm", job.model.norm, NormKind::kAuto, automatic_norm(job));
  settle("loss.kind", job.loss.kind, automatic, automatic_loss(job, columns));

  // The rest follows from what has been settled by now, and from the machine.
  settle("train.baseline", job.train.baseline, BaselineKind::kAuto, baseline_offered(job));
  settle("layout.fold", job.layout.fold, FoldKind::kAuto, FoldKind::kLocal);
  settle("layout.zero", job.layout.zero, kAutomatic, automatic_zero(job));

  if (auto faults = faults_of(job, machine, rules); !faults.empty())
    throw ConfigError(std::move(faults));
}

}  // namespace tutti
