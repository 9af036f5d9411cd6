#include "train/mesh_rank.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "comm/pulls.h"
#include "engine/device/mesh.h"
#include "plan/check/ddp.h"
#include "plan/check/prove.h"
#include "state/checkpoint.h"

namespace tutti {

namespace {

/// "blocks.2,blocks.4" as layers.
std::vector<int> layers_of(const std::string& cut, const ModelShape& shape) {
  std::vector<int> layers;
  for (size_t begin = 0; !cut.empty() && begin <= cut.size();) {
    const size_t end = std::min(cut.find(',', begin), cut.size());
    std::string name = cut.substr(begin, end - begin);
    name.erase(0, name.find_first_not_of(' '));
    name.erase(name.find_last_not_of(' ') + 1);
    const auto found = std::find_if(shape.blocks.begin(), shape.blocks.end(),
                                    [&](const BlockShape& b) { return b.name == name && b.column == 0; });
    if (found == shape.blocks.end()) {
      std::string known;
      for (const BlockShape& b : shape.blocks)
        if (b.column == 0) known += (known.empty() ? "" : ", ") + b.name;
      throw ConfigError({fmt::format("layout.cut: the model has no block \"{}\"; it has {}", name, known)});
    }
    layers.push_back(found->layer);
    begin = end + 1;
  }
  return layers;
}

}  // namespace

MeshOptions mesh_options(const Job& job, const ModelShape& shape, int slots) {
  const LayoutConfig& layout = job.layout;
  MeshOptions options;
  options.mesh = mesh_of(layout);
  options.batch = batch_of(job.train);
  options.zero = static_cast<int>(layout.zero);
  options.owner = layout.fold == "owner";
  options.micro = job.numerics.order == "micro";
  options.schedule = layout.schedule;
  options.chunks = static_cast<int>(layout.chunks);
  options.in_flight = static_cast<int>(layout.in_flight);
  options.cut = layers_of(layout.cut, shape);
  options.recompute = layout.recompute == "full"        ? Recompute::kFull
                      : layout.recompute == "selective" ? Recompute::kSelective
                                                        : Recompute::kNone;
  options.overlap = layout.overlap;
  options.depth = static_cast<int>(layout.depth);
  options.hosts = static_cast<int>(layout.hosts);
  options.optimizer_slots = slots;
  options.offload = layout.offload != "none";
  options.offload_parameters = layout.offload == "all";
  return options;
}

MeshRank::MeshRank(const Job& job, const Model& model, const ModelShape& shape, const Updater& updater, int rank)
    : job_(job),
      model_(model),
      shape_(shape),
      updater_(updater),
      rank_(rank),
      options_(mesh_options(job, shape, static_cast<int>(updater.slots().size()))),
      forward_options_(options_) {
  if (auto faults = mesh_faults(shape, options_); !faults.empty()) throw ConfigError(std::move(faults));
  if (shape.blocks.size() > kFlaggedUnits)
    throw ConfigError(
        {fmt::format("the model has {} units, but a mesh has flags for {}; fewer layers or tensor_slices work, or "
                     "plain data parallelism",
                     shape.blocks.size(), kFlaggedUnits)});
  const auto proved = [&shape](const MeshOptions& options) {
    Plan plan = plan_mesh(shape, options);
    if (auto faults = check_mesh(plan, shape, options); !faults.empty()) throw ConfigError(std::move(faults));
    return plan;
  };
  plan_ = proved(options_);
  forward_options_.forward_only = true;
  forward_plan_ = proved(forward_options_);
}

int64_t MeshRank::window_bytes() const { return window_bytes_of(plan_.programs[rank_]); }

int64_t MeshRank::forecast(bool windows) const {
  return forecast_memory(plan_.programs[rank_]).total() + message_bytes(plan_, shape_, options_, rank_, windows);
}

DeviceForecast MeshRank::device_forecast() const {
  return tutti::device_forecast(job_, model_, plan_, forward_plan_, shape_, options_, rank_);
}

std::vector<MicroBatch> MeshRank::sequence() const {
  std::vector<MicroBatch> loads;
  for (const Instruction& i : plan_.programs[rank_].queues[0].instructions)
    if (i.op == Op::kLoad) loads.push_back({i.lane, i.micro});
  return loads;
}

void MeshRank::place(Transport& transport, Channel& channel, Accounts& accounts, Device* device) {
  const Program& program = plan_.programs[rank_];
  memory_ = std::make_unique<MeshMemory>(model_, program, forward_plan_.programs[rank_], transport.window(),
                                         job_.layout.offload_folder, accounts, device);
  const std::vector<Held> held = held_by(shape_, options_, rank_);
  std::vector<UnitMemory> memory(held.size());
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.unit < 0 || held[buffer.unit].parameters.empty()) continue;
    float* values = memory_->floats(static_cast<int>(b));
    // Copies of shared parameters lie behind the unit's own floats.
    if (buffer.kind == BufferKind::kParameter && buffer.range.begin < shape_.blocks[buffer.unit].unit_size)
      memory[buffer.unit].parameters = values;
    if (buffer.kind != BufferKind::kMoment) continue;
    for (int k = 0; k < options_.optimizer_slots; ++k)
      memory[buffer.unit].slots.push_back(values + k * align_up(held[buffer.unit].moments.size(), kAlign));
  }
  units_ = std::make_unique<MeshUnits>(model_, shape_, held, updater_.slots(), job_.train.seed, std::move(memory),
                                       accounts, device);
  memory_->forget_tier();
  collector_ = std::make_unique<Collector>(units_->entries(), units_->pieces(), channel);
}

StateCounters MeshRank::load(const std::string& checkpoint) {
  StateCounters counters = load_checkpoint(checkpoint, units_->entries(), units_->pieces());
  units_->upload();
  return counters;
}

std::unique_ptr<Engine> MeshRank::make_engine(RankContext& context, Accounts& accounts, Trace& trace,
                                              Transport& transport, Loader& loader, const RankDevice* device) {
  const MeshParts parts{job_,     model_, context,  shape_,  plan_,    forward_plan_, options_, forward_options_,
                        accounts, trace,  *memory_, *units_, updater_, transport,     loader};
  return device != nullptr ? make_device_mesh_engine(parts, *device) : make_mesh_engine(parts);
}

}  // namespace tutti
