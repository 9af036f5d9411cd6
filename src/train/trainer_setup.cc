// What a trainer does before its first step: data, plan and state, then the connections and the
// engine.
#include <fmt/format.h>
#include <malloc.h>

#include <sstream>

#include "base/error.h"
#include "data/core/resample.h"
#include "engine/channels.h"
#include "engine/device/kind.h"
#include "model/adapt/adaptor.h"
#include "model/core/dry_run.h"
#include "model/core/wiring.h"
#include "net/make.h"
#include "plan/ir/plan_memory.h"
#include "state/checkpoint.h"
#include "tensor/threads.h"
#include "train/trainer.h"

namespace tutti {

Trainer::Trainer(const Job& job, const Model& model, RankContext& context,
                 const std::string& checkpoint, const OwnPartition& own, RankDevice* device)
    : job_(job),
      model_(model),
      context_(context),
      device_(device != nullptr && *device ? device : nullptr),
      batch_(batch_of(job.train)),
      data_(open_data(job, data_group())),
      shape_(describe(model)),
      progress_(first_progress(job)) {
  prepare_compute_thread(1);
  updater_ = std::make_unique<Updater>(job, shape_);
  order_ = make_order(job, *data_.train);
  partition_ = make_partition(job.layout, data_.train, context.size, own);
  if (job.layout.workers == Workers::kThread) check_thread_ranks(model_);
  const auto plan = [this] {
    plan_ = plan_ranks(job_, shape_, static_cast<int>(updater_->slots().size()), on_device());
  };
  if (device_ != nullptr) {  // by what segments declare, before a dry run takes any of it
    plan();
    check_device_memory();
  }
  measure();
  plan();
  if (device_ != nullptr) {
    check_device_memory();
    device_->device->reserve_pool(aten_bytes(model_, program()));
  }
  connect();
  place(checkpoint);
  loader_ = std::make_unique<Loader>(loader_options(), context_.clock, &context_.control.cancel);
  const EngineParts parts{job_,      model_, context_, shape_,  plan_.steps, plan_.evaluation,
                          accounts_, trace_, *memory_, *units_, *updater_,   *transport_,
                          *loader_};
  engine_ = std::make_unique<Engine>(parts, device_);
  // What the dry run and the planning took: the steps want none of it. A sanitizer has an allocator
  // of its own beside glibc's, which ranks that are threads would then set up in each other's way.
#if !__has_feature(address_sanitizer)
  ::malloc_trim(0);
#endif
}

Trainer::~Trainer() = default;

/// Takes the memory that the programs name, and gives the units their places in it and their
/// values.
void Trainer::place(const std::string& checkpoint) {
  Device* device = device_ != nullptr ? device_->device.get() : nullptr;
  const Program& program = this->program();
  memory_ = std::make_unique<ProgramMemory>(
      model_, program, plan_.evaluation.programs[context_.rank], transport_->held_window(),
      job_.layout.offload_folder, accounts_, device);
  const std::vector<Held> held = held_by(plan(), context_.rank);
  std::vector<UnitMemory> memory(held.size());
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.unit < 0 || held[buffer.unit].parameters.empty()) continue;
    float* values = memory_->floats(static_cast<int>(b));
    // Copies of shared parameters are placed elsewhere.
    if (buffer.kind == BufferKind::kParameter && buffer.placed.empty())
      memory[buffer.unit].parameters = values;
    if (buffer.kind != BufferKind::kMoment) continue;
    for (int k = 0; k < plan().optimizer_slots; ++k)
      memory[buffer.unit].slots.push_back(values +
                                          k * align_up(held[buffer.unit].moments.size(), kAlign));
  }
  units_ = std::make_unique<Units>(model_, shape_, held, updater_->slots(), job_.train.seed,
                                   std::move(memory), accounts_, device);
  memory_->forget_tier();
  collector_ = std::make_unique<Collector>(units_->entries(), units_->pieces(), *main_channel_);
  if (checkpoint.empty()) return;
  progress_ = progress_from(job_, load_checkpoint(checkpoint, units_->entries(), units_->pieces()));
  units_->upload();
}

void Trainer::measure() {
  if (device_ == nullptr) return dry_run(model_, shape_);
  dry_run(model_, shape_, *device_->device, device_->place(), compute_type(job_));
}

/// Before anything large is taken, on every rank at the same time: what is free then, and what
/// ATen's pools have taken for the steps, is for all ranks of the device.
void Trainer::check_device_memory() {
  const DeviceForecast forecast =
      tutti::device_forecast(job_, model_, plan_.steps, plan_.evaluation, context_.rank);
  const Device& device = *device_->device;
  const std::string mine = fmt::format("{} {} {} {}", device.free_bytes(), device.pool().reserved,
                                       forecast.total(), device.info().uuid);
  int64_t free = device.free_bytes(), reserved = 0;
  share_ = {};
  for (const Card& card : context_.rendezvous.exchange({.bytes = mine}, Deadline::never())) {
    std::istringstream text(card.bytes);
    int64_t its_free = 0, its_reserved = 0, its_forecast = 0;
    std::string uuid;
    text >> its_free >> its_reserved >> its_forecast >> uuid;
    if (uuid != device.info().uuid) continue;
    ++share_.ranks;
    share_.bytes += its_forecast;
    free = std::min(free, its_free);
    reserved += its_reserved;
  }
  const std::string fault = memory_fault(forecast, free + reserved, share_, device.info().name);
  if (!fault.empty()) throw ConfigError({fault});
  device_forecast_ = forecast;
}

/// The launcher's rendezvous serves before the transport is there. Reading may take its time; that
/// a rank is alive its heartbeats say.
DataGroup Trainer::data_group() const {
  return {context_.rank, context_.size,
          [&rendezvous = context_.rendezvous](const std::string& mine) {
            std::vector<std::string> all;
            for (const Card& card : rendezvous.exchange({.bytes = mine}, Deadline::never()))
              all.push_back(card.bytes);
            return all;
          }};
}

/// What this rank trains on from here on.
LoaderOptions Trainer::loader_options() const {
  LoaderOptions options;
  options.data = data_.train;
  options.borders = model_.data;
  options.batch = batch_;
  options.sequence = loads_of(program());
  options.order = order_;
  options.first_step = progress_.step;
  if (job_.augment.any())
    options.augment =
        std::make_shared<const Augment>(job_.augment, job_.model.image, job_.train.seed);
  options.partition = partition_;
  options.channel = loader_channel_.get();
  return options;
}

/// Checks that all ranks hold the same plan on the same kind of processor, and opens the transport
/// of the host's messages.
void Trainer::connect() {
  const uint64_t hash = plan_hash(plan());
  const Deadline deadline = context_.clock.after(timeout_of(job_));
  std::string mine = fmt::format("plan {:016x} processor {}", hash, golden_digest());
  if (device_ != nullptr) mine += " device " + describe_kind(device_->device->info());
  auto cards = context_.rendezvous.exchange({.bytes = mine}, deadline);
  for (int r = 0; r < context_.size; ++r)
    if (cards[r].bytes != mine)
      throw Error(fmt::format("rank {} ({}) cannot run with rank {} ({})", r, cards[r].bytes,
                              context_.rank, mine));

  TransportOptions options;
  options.kind = device_ == nullptr                        ? job_.layout.transport
                 : job_.layout.workers == Workers::kThread ? "inproc"
                                                           : "shm";
  for (int r = 0; r < context_.size; ++r)
    options.hosts.push_back(host_of(r, context_.size, static_cast<int>(job_.layout.hosts)));
  options.window_bytes = device_ != nullptr ? 0 : static_cast<size_t>(window_bytes(program()));
  options.address = job_.layout.address;
  options.port = static_cast<int>(job_.layout.port);
  options.connections = static_cast<int>(job_.layout.connections);
  // Every rank must have the same token: rank 0's.
  const std::string drawn = std::to_string(new_token());
  const uint64_t run =
      std::stoull(context_.rendezvous.exchange({.bytes = drawn}, deadline)[0].bytes);
  transport_ = make_transport(options, {run, 0, hash}, context_.rendezvous, context_.clock,
                              &context_.control.cancel, deadline);
  main_channel_ =
      std::make_unique<Channel>(*transport_, context_.clock, kMainChannel, timeout_of(job_));
  loader_channel_ =
      std::make_unique<Channel>(*transport_, context_.clock, kLoaderChannel, timeout_of(job_));
}

}  // namespace tutti
