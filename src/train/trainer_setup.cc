// What a trainer does before its first step: data, plan and state, then the connections and the engine.
#include <fmt/format.h>
#include <malloc.h>

#include <sstream>

#include "base/error.h"
#include "data/resample.h"
#include "engine/channels.h"
#include "engine/device/ddp.h"
#include "model/adaptor.h"
#include "model/dry_run.h"
#include "net/make.h"
#include "plan/make/ddp.h"
#include "state/checkpoint.h"
#include "tensor/threads.h"
#include "train/trainer.h"

namespace tutti {

Trainer::Trainer(const Job& job, const Model& model, RankContext& context, const std::string& checkpoint,
                 const OwnPartition& own, RankDevice* device)
    : job_(job),
      model_(model),
      context_(context),
      device_(device != nullptr && *device ? device : nullptr),
      batch_(batch_of(job.train)),
      lanes_(lanes_of(context.rank, context.size, batch_.lanes)),
      data_(open_data(job, data_group())),
      shape_(describe(model)),
      scale_(first_loss_scale(job.numerics)) {
  prepare_compute_thread(static_cast<int>(job.numerics.threads));
  updater_ = std::make_unique<Updater>(job, shape_);
  order_ = make_order(job, *data_.train);
  partition_ = make_partition(job.layout, data_.train, context.size, own);
  if (job.layout.workers == "thread") check_thread_ranks(model_);
  if (device_ != nullptr) {  // by what segments declare, before a dry run takes any of it
    if (needs_mesh(job)) {
      check_device_memory(MeshRank(job, model, shape_, *updater_, context.rank).device_forecast());
    } else {
      plan_ = make_plan();
      check_device_memory(tutti::device_forecast(job, model, shape_, plan_, context.rank));
    }
  }
  measure();
  if (needs_mesh(job)) {
    set_up_mesh(checkpoint);
  } else {
    set_up_data_parallel(checkpoint);
  }
  // What the dry run and the planning took: the steps want none of it. A sanitizer has an allocator of its own beside
  // glibc's, which ranks that are threads would then set up in each other's way.
#if !__has_feature(address_sanitizer)
  ::malloc_trim(0);
#endif
}

Trainer::~Trainer() = default;

void Trainer::set_up_data_parallel(const std::string& checkpoint) {
  plan_ = make_plan();
  if (auto faults = check_plan(plan_, shape_, batch_.micro_batches); !faults.empty())
    throw ConfigError(std::move(faults));
  places_ = gradient_places(plan_, shape_);
  if (device_ != nullptr) {
    check_device_memory(tutti::device_forecast(job_, model_, shape_, plan_, context_.rank));
    device_->device->reserve_pool(pool_forecast(model_, shape_));
  }
  Device* memory = device_ != nullptr ? device_->device.get() : nullptr;
  units_ = std::make_unique<Units>(model_, shape_, updater_->slots(), job_.train.seed, accounts_, memory);
  if (!checkpoint.empty()) load(checkpoint);
  connect();
  loader_ = std::make_unique<Loader>(loader_options(), context_.clock, &context_.control.cancel);
  const EngineParts parts{job_,   model_,    context_, shape_,  plan_,     places_,     batch_,
                          lanes_, accounts_, trace_,   *units_, *updater_, *transport_, *loader_};
  engine_ = device_ != nullptr ? make_device_engine(parts, *device_) : make_host_engine(parts);
}

/// Where state is cut, memory comes after the connection: some of it lies in the transport's window.
void Trainer::set_up_mesh(const std::string& checkpoint) {
  mesh_ = std::make_unique<MeshRank>(job_, model_, shape_, *updater_, context_.rank);
  Device* memory = device_ != nullptr ? device_->device.get() : nullptr;
  if (memory != nullptr) {
    check_device_memory(mesh_->device_forecast());
    memory->reserve_pool(mesh_->pool_bytes());
  }
  connect();
  mesh_->place(*transport_, *main_channel_, accounts_, memory);
  if (!checkpoint.empty()) resume_from(mesh_->load(checkpoint));
  loader_ = std::make_unique<Loader>(loader_options(), context_.clock, &context_.control.cancel);
  engine_ = mesh_->make_engine(context_, accounts_, trace_, *transport_, *loader_, device_);
}

Plan Trainer::make_plan() const {
  return plan_ddp(shape_, {.ranks = context_.size,
                           .lanes = batch_.lanes,
                           .micro_batches = batch_.micro_batches,
                           .overlap = job_.layout.overlap,
                           .bucket_floats = job_.layout.bucket_floats,
                           .optimizer_slots = static_cast<int>(updater_->slots().size()),
                           .data_bytes = 0});
}

void Trainer::measure() {
  if (device_ == nullptr) return dry_run(model_, shape_);
  dry_run(model_, shape_, *device_->device, device_->place(), compute_type(job_));
}

/// Before anything large is taken, on every rank at the same time: what is free then, and what ATen's pools have taken
/// for the steps, is for all ranks of the device.
void Trainer::check_device_memory(const DeviceForecast& forecast) {
  const Device& device = *device_->device;
  const std::string mine =
      fmt::format("{} {} {} {}", device.free_bytes(), device.pool().reserved, forecast.total(), device.info().uuid);
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

void Trainer::load(const std::string& checkpoint) {
  State loaded = units_->state({});
  load_checkpoint(checkpoint, loaded);
  units_->upload();
  resume_from(loaded.counters);
}

void Trainer::resume_from(const StateCounters& counters) {
  step_ = counters.step;
  const std::string& text = counters.schedule;
  const size_t cut = text.find(';');
  watched_ = watched_from(text.substr(0, cut));
  if (cut == std::string::npos) return;
  const LossScale before = loss_scale_from(text.substr(cut + 1));
  // One that goes on in another precision has a scale of its own, but steps that were skipped stay skipped.
  if (job_.numerics.precision == "float16" && before.scale > 1) {
    scale_ = before;
  } else {
    scale_.skipped = before.skipped;
  }
}

/// The launcher's rendezvous serves before the transport is there. Reading may take its time; that a rank is alive its
/// heartbeats say.
DataGroup Trainer::data_group() const {
  return {context_.rank, context_.size, [&rendezvous = context_.rendezvous](const std::string& mine) {
            std::vector<std::string> all;
            for (const Card& card : rendezvous.exchange({.bytes = mine}, Deadline::never())) all.push_back(card.bytes);
            return all;
          }};
}

/// What this rank trains on from here on.
LoaderOptions Trainer::loader_options() const {
  LoaderOptions options;
  options.data = data_.train;
  options.borders = model_.data;
  options.batch = batch_;
  options.sequence = mesh_ ? mesh_->sequence() : lane_by_lane(lanes_, batch_);
  options.order = order_;
  options.first_step = step_;
  if (job_.augment.any())
    options.augment = std::make_shared<const Augment>(job_.augment, job_.model.image, job_.train.seed);
  options.partition = partition_;
  options.channel = loader_channel_.get();
  return options;
}

/// Checks that all ranks hold the same plan on the same kind of processor, and opens the transport of the host's
/// messages.
void Trainer::connect() {
  const uint64_t hash = plan_hash(plan());
  const Deadline deadline = context_.clock.after(timeout_of(job_));
  std::string mine = fmt::format("plan {:016x} processor {}", hash, golden_digest());
  if (device_ != nullptr) mine += " device " + describe_kind(device_->device->info());
  auto cards = context_.rendezvous.exchange({.bytes = mine}, deadline);
  for (int r = 0; r < context_.size; ++r)
    if (cards[r].bytes != mine)
      throw Error(fmt::format("rank {} ({}) cannot run with rank {} ({})", r, cards[r].bytes, context_.rank, mine));

  TransportOptions options;
  options.kind = device_ == nullptr ? job_.layout.transport : job_.layout.workers == "thread" ? "inproc" : "shm";
  for (int r = 0; r < context_.size; ++r)
    options.hosts.push_back(host_of(r, context_.size, static_cast<int>(job_.layout.hosts)));
  options.window_bytes = device_ != nullptr ? 0
                         : mesh_            ? static_cast<size_t>(mesh_->window_bytes())
                                            : static_cast<size_t>(window_bytes_of(plan_, context_.rank, places_));
  options.address = job_.layout.address;
  options.port = static_cast<int>(job_.layout.port);
  options.connections = static_cast<int>(job_.layout.connections);
  // Every rank must have the same token: rank 0's.
  const std::string drawn = std::to_string(new_token());
  const uint64_t run = std::stoull(context_.rendezvous.exchange({.bytes = drawn}, deadline)[0].bytes);
  transport_ =
      make_transport(options, {run, 0, hash}, context_.rendezvous, context_.clock, &context_.control.cancel, deadline);
  main_channel_ = std::make_unique<Channel>(*transport_, context_.clock, kMainChannel, timeout_of(job_));
  loader_channel_ = std::make_unique<Channel>(*transport_, context_.clock, kLoaderChannel, timeout_of(job_));
}

}  // namespace tutti
