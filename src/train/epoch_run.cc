// What an epoch needs, in the order in which it is made: plan, memory check, agreement,
// connections, state, then loader and engine. Each step is collective.
#include "train/epoch_run.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <exception>
#include <set>
#include <sstream>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "config/job_parts.h"
#include "config/timeout.h"
#include "engine/device/kind.h"
#include "engine/host/host_travel.h"
#include "net/make.h"
#include "plan/ir/plan_memory.h"
#include "plan/ir/tags.h"
#include "tensor/threads.h"

namespace tutti {

namespace {

/// Where a unit's values are in the memory of its program.
std::vector<UnitMemory> unit_memory(const Plan& plan, int rank, const ProgramMemory& memory) {
  const Program& program = plan.programs[rank];
  const std::vector<Held> held = held_by(plan, rank);
  std::vector<UnitMemory> units(held.size());
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.unit < 0 || held[buffer.unit].parameters.empty()) continue;
    float* values = memory.floats(static_cast<int>(b));
    // Copies of shared parameters are placed elsewhere.
    if (buffer.kind == BufferKind::kParameter && buffer.placed.empty())
      units[buffer.unit].parameters = values;
    if (buffer.kind != BufferKind::kMoment) continue;
    for (int k = 0; k < plan.optimizer_slots; ++k)
      units[buffer.unit].slots.push_back(values +
                                         k * align_up(held[buffer.unit].moments.size(), kAlign));
  }
  return units;
}

}  // namespace

Job job_in(const Job& job, const LayoutConfig& layout, const Membership& membership) {
  const std::vector<int> hosts = membership.rank_hosts();
  Job placed = job;
  placed.layout = layout;
  placed.layout.ranks = membership.size();
  placed.layout.hosts = static_cast<int64_t>(std::set<int>(hosts.begin(), hosts.end()).size());
  return placed;
}

/// A pure function, so ranks in processes of their own make it each for itself. Threads would only
/// make the same one again, side by side on the same cores: theirs is made by the first.
std::shared_ptr<const Plans> plan_epoch(const Worker& worker, const Job& job,
                                        Rendezvous& rendezvous) {
  struct Made {
    std::shared_ptr<const Plans> plan;
    std::exception_ptr refused;
  };
  const auto make = [&] {
    return std::make_shared<const Plans>(
        plan_ranks(job, worker.shape, worker.optimizer_slots(), worker.on_device()));
  };
  if (job.layout.workers != Workers::kThread) return make();

  // The others must hear of a refusal, too, instead of waiting for a plan.
  const auto made = std::make_shared<Made>();
  if (rendezvous.rank() == 0) {
    try {
      made->plan = make();
    } catch (...) {
      made->refused = std::current_exception();
    }
  }
  const std::vector<Card> cards =
      rendezvous.exchange({.object = made}, worker.context.while_working(timeout_of(worker.job)));

  // The card of rank 0 holds the plan itself, since threads share their memory.
  const auto first = std::static_pointer_cast<Made>(cards[0].object);
  if (first->refused) std::rethrow_exception(first->refused);
  return first->plan;
}

std::unique_ptr<Transport> connect_members(const Job& job, const Membership& membership,
                                           RankContext& context, Rendezvous& rendezvous,
                                           size_t window_bytes, uint64_t plan_hash, bool on_device,
                                           const Patience& patience) {
  TransportOptions options;
  options.kind = job.layout.transport;
  // What else ranks on devices tell each other (votes of the host, state) goes by way of the host.
  if (on_device) options.kind = automatic_transport(false, job.layout.workers);
  options.hosts = membership.rank_hosts();
  options.window_bytes = window_bytes;
  options.address = membership.addresses[context.worker];
  options.port = static_cast<int>(job.layout.port);
  options.connections = static_cast<int>(job.layout.connections);
  // Every rank must have the same token: rank 0's.
  const std::string drawn = std::to_string(new_token());
  const uint64_t run = std::stoull(rendezvous.exchange({.bytes = drawn}, patience)[0].bytes);
  return make_transport(options, {run, membership.epoch, plan_hash}, rendezvous, context.clock,
                        &context.control.cancel, patience);
}

EpochRun::EpochRun(Worker& worker, const LayoutConfig& layout, const Membership& membership,
                   const WrapTransport& wrap, std::shared_ptr<const Plans> plan)
    : worker_(worker),
      membership_(membership),
      job_(job_in(worker.job, layout, membership)),
      rendezvous_(worker.context.rendezvous.among(membership)),
      context_{membership.rank,        membership.size(), worker.context.clock,
               worker.context.control, *rendezvous_,      worker.context.worker},
      plan_(std::move(plan)),
      partition_(
          make_partition(job_.layout, worker.data.train, membership.size(), worker.own_partition)),
      free_at_start_(static_cast<int64_t>(available_memory())) {
  if (plan_ == nullptr) make_plan();
  if (worker_.on_device()) {
    check_device_memory();
    worker_.device->device->reserve_pool(aten_bytes(worker_.model, program()));
  }
  agree();
  connect(wrap);
}

EpochRun::~EpochRun() = default;

void EpochRun::make_plan() {
  // The first plan goes by what segments declare, so that the check comes before a dry run takes
  // any of the device.
  if (worker_.on_device()) {
    plan_ = plan_epoch(worker_, job_, *rendezvous_);
    check_device_memory();
  }
  worker_.measure();
  plan_ = plan_epoch(worker_, job_, *rendezvous_);
}

/// Comes before anything large is taken, on every rank at the same time. What is free then, and
/// what ATen's pools have taken for the steps, is shared by all ranks of the device.
void EpochRun::check_device_memory() {
  const DeviceForecast forecast = tutti::device_forecast(job_, worker_.model, plan_->steps,
                                                         plan_->evaluation, membership_.rank);
  const Device& device = *worker_.device->device;
  const std::string mine = fmt::format("{} {} {} {}", device.free_bytes(), device.pool().reserved,
                                       forecast.total(), device.info().uuid);

  // Ranks of one device share what is free on it, so their forecasts add up.
  int64_t free = device.free_bytes(), reserved = 0;
  share_ = {};
  for (const Card& card :
       context_.rendezvous.exchange({.bytes = mine}, context_.while_working(timeout_of(job_)))) {
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

/// All ranks must hold the same plan, and where libraries compute, run on the same kind of processor.
void EpochRun::agree() {
  std::string mine = fmt::format("plan {:016x}", plan_hash(plan()));
  if (by_libraries(job_, worker_.model)) mine += " processor " + library_digest();
  if (worker_.on_device()) mine += " device " + describe_kind(worker_.device->device->info());
  // Ranks come here when they have made their plans, which takes some longer than others.
  const std::vector<Card> cards =
      context_.rendezvous.exchange({.bytes = mine}, context_.while_working(timeout_of(job_)));
  for (int r = 0; r < context_.size; ++r)
    if (cards[r].bytes != mine)
      throw Error(fmt::format("rank {} ({}) cannot run with rank {} ({})", r, cards[r].bytes,
                              context_.rank, mine));
}

void EpochRun::connect(const WrapTransport& wrap) {
  const size_t window = worker_.on_device() ? 0 : static_cast<size_t>(window_bytes(program()));
  transport_ =
      connect_members(job_, membership_, context_, context_.rendezvous, window, plan_hash(plan()),
                      worker_.on_device(), context_.while_working(timeout_of(job_)));
  if (wrap) transport_ = wrap(std::move(transport_));
  const Duration timeout = timeout_of(job_);
  // Between steps, and while it reads data, a rank may take long before it gets to the call that
  // the others are in.
  main_channel_ = std::make_unique<Channel>(*transport_, context_.clock, kMainChannel, timeout,
                                            context_.signs());
  loader_channel_ = std::make_unique<Channel>(*transport_, context_.clock, kLoaderChannel, timeout,
                                              context_.signs());
  saver_channel_ = std::make_unique<Channel>(*transport_, context_.clock, kSaverChannel, timeout,
                                             context_.signs());
}

HeldState EpochRun::make_state(bool fresh) {
  Device* device = worker_.on_device() ? worker_.device->device.get() : nullptr;
  HeldState made;
  made.memory = std::make_unique<ProgramMemory>(
      worker_.model, program(), plan_->evaluation.programs[membership_.rank],
      transport_->held_window(), job_.layout.offload_folder, worker_.accounts, device);
  made.units = std::make_unique<Units>(
      worker_.model, worker_.shape, held_by(plan(), membership_.rank), worker_.updater.slots(),
      fresh ? std::optional(job_.train.seed) : std::nullopt,
      unit_memory(plan(), membership_.rank, *made.memory), worker_.accounts, device);
  made.memory->forget_tier();
  return made;
}

void EpochRun::begin() {
  const HeldState& state = worker_.state;
  collector_ =
      std::make_unique<Collector>(state.units->entries(), state.units->pieces(), *main_channel_);
  loader_ = std::make_unique<Loader>(loader_options(), context_.clock, &context_.control.cancel);
  const EngineParts parts{.training = {job_, worker_.model, worker_.shape, worker_.updater},
                          .plans = *plan_,
                          .state = state,
                          .context = context_,
                          .transport = *transport_,
                          .loader = *loader_,
                          .saving = worker_.saving,
                          .gauges = {worker_.accounts, trace_}};
  engine_ = std::make_unique<Engine>(parts, worker_.device);
  // The steps want none of the memory that the dry run and the planning took. A sanitizer has an
  // allocator of its own alongside glibc's, which ranks that are threads would then set up in each
  // other's way.
#if !__has_feature(address_sanitizer)
  ::malloc_trim(0);
#endif
}

LoaderOptions EpochRun::loader_options() const {
  LoaderOptions options;
  options.data = worker_.data.train;
  options.borders = worker_.model.data;
  options.batch = worker_.batch;
  options.sequence = loads_of(program());
  options.order = worker_.order;
  options.first_step = worker_.progress.step;
  if (job_.augment.any())
    options.augment =
        std::make_shared<const Augment>(job_.augment, job_.model.image, job_.train.seed);
  options.partition = partition_;
  options.channel = loader_channel_.get();
  return options;
}

int64_t EpochRun::forecast_bytes() const {
  if (worker_.on_device()) return device_forecast_.total();
  return forecast_memory(program()).total() +
         message_bytes(plan(), membership_.rank, reaches_all(*transport_));
}

}  // namespace tutti
