// What a trainer does before its first step: data, plan and state, then the connections and the gradients' memory.
#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "data/resample.h"
#include "model/dry_run.h"
#include "net/make.h"
#include "plan/ddp.h"
#include "state/checkpoint.h"
#include "tensor/threads.h"
#include "train/trainer.h"

namespace tutti {

namespace {

// Tags of the channels beside the reductions' (which use the bucket's number).
constexpr uint32_t kDataChannel = 1 << 20, kMainChannel = kDataChannel + 64, kLoaderChannel = kMainChannel + 64;
// Bucket arrays start on pages, so that two ranks never write into one.
constexpr int64_t kPageFloats = 1024;

Duration duration(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Trainer::Trainer(const Job& job, const Model& model, RankContext& context, const std::string& checkpoint,
                 const OwnPartition& own)
    : job_(job),
      model_(model),
      context_(context),
      timeout_(duration(job.layout.timeout)),
      batch_(batch_of(job.train)),
      lanes_(lanes_of(context.rank, context.size, batch_.lanes)),
      data_(open_data(job, data_group())),
      shape_(describe(model)) {
  prepare_compute_thread(static_cast<int>(job.numerics.threads));
  updater_ = std::make_unique<Updater>(job, shape_);
  order_ = make_order(job, *data_.train);
  partition_ = make_partition(job.layout, data_.train, context.size, own);
  if (job.layout.workers == "thread") check_thread_ranks(model_);
  dry_run(model_, shape_);
  plan_ = plan_ddp(shape_, {.ranks = context.size,
                            .lanes = batch_.lanes,
                            .micro_batches = batch_.micro_batches,
                            .overlap = job.layout.overlap,
                            .bucket_floats = job.layout.bucket_floats,
                            .optimizer_slots = static_cast<int>(updater_->slots().size()),
                            .data_bytes = 0});
  if (auto faults = check_plan(plan_, shape_, batch_.micro_batches); !faults.empty())
    throw ConfigError(std::move(faults));
  units_ = std::make_unique<Units>(model_, shape_, updater_->slots(), job.train.seed, accounts_);
  if (!checkpoint.empty()) {
    State loaded = units_->state({});
    load_checkpoint(checkpoint, loaded);
    step_ = loaded.counters.step;
    watched_ = watched_from(loaded.counters.schedule);
  }
  connect();
  make_reductions();
  std::vector<float*> parameters;
  for (size_t u = 0; u < shape_.blocks.size(); ++u) parameters.push_back(units_->parameters(static_cast<int>(u)));
  runner_ = std::make_unique<ModelRunner>(model_, shape_, parameters, accounts_);
  unit_gradients_.resize(shape_.blocks.size());
  unit_squares_.resize(shape_.blocks.size());
  loader_ = std::make_unique<Loader>(loader_options(), context.clock, &context.control.cancel);
  int threads = static_cast<int>(job.numerics.threads);
  executor_ = std::make_unique<Executor>(program(), handlers(), context.clock, &context.control.cancel, &trace_,
                                         [threads] { prepare_compute_thread(threads); });
}

Trainer::~Trainer() = default;

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
  options.lanes = lanes_;
  options.order = order_;
  options.first_step = step_;
  if (job_.augment.any())
    options.augment = std::make_shared<const Augment>(job_.augment, job_.model.image, job_.train.seed);
  options.partition = partition_;
  options.channel = loader_channel_.get();
  return options;
}

/// Lays out the gradients, checks that all ranks hold the same plan on the same kind of processor, and opens the
/// transport.
void Trainer::connect() {
  for (const Bucket& bucket : plan_.buckets) {
    bucket_start_.push_back(partial_floats_);
    partial_floats_ += align_up(bucket.partial_size, kPageFloats);
  }
  uint64_t hash = plan_hash(plan_);
  Deadline deadline = context_.clock.after(timeout_);
  std::string mine = fmt::format("plan {:016x} processor {}", hash, golden_digest());
  auto cards = context_.rendezvous.exchange({.bytes = mine}, deadline);
  for (int r = 0; r < context_.size; ++r)
    if (cards[r].bytes != mine)
      throw Error(fmt::format("rank {} ({}) cannot run with rank {} ({})", r, cards[r].bytes, context_.rank, mine));

  TransportOptions options;
  options.kind = job_.layout.transport;
  for (int r = 0; r < context_.size; ++r)
    options.hosts.push_back(host_of(r, context_.size, static_cast<int>(job_.layout.hosts)));
  size_t partials = subtrees(lanes_, batch_.lanes).size();
  options.window_bytes = partials * partial_floats_ * sizeof(float);
  options.address = job_.layout.address;
  options.port = static_cast<int>(job_.layout.port);
  options.connections = static_cast<int>(job_.layout.connections);
  // Every rank must have the same run number; rank 0 draws it from its process and time.
  uint64_t run =
      static_cast<uint64_t>(::getpid()) << 32 ^ static_cast<uint64_t>(context_.clock.now().time_since_epoch().count());
  run = std::stoull(context_.rendezvous.exchange({.bytes = std::to_string(run)}, deadline)[0].bytes);
  transport_ =
      make_transport(options, {run, 0, hash}, context_.rendezvous, context_.clock, &context_.control.cancel, deadline);

  place_gradients(options.window_bytes);
  data_channel_ = std::make_unique<Channel>(*transport_, context_.clock, kDataChannel, timeout_);
  main_channel_ = std::make_unique<Channel>(*transport_, context_.clock, kMainChannel, timeout_);
  loader_channel_ = std::make_unique<Channel>(*transport_, context_.clock, kLoaderChannel, timeout_);
}

/// In the transport's window where it has one, so that others read partial sums there; what nobody reads lies apart.
void Trainer::place_gradients(size_t window_bytes) {
  size_t private_bytes = 0;
  const Program& p = program();
  for (const Buffer& b : p.buffers)
    if (b.kind == BufferKind::kGradient && b.partial < 0) private_bytes += align_up(b.bytes, 256);
  bool in_window = !transport_->window().empty();
  if (in_window) {
    window_arena_ = std::make_unique<Arena>(BufferKind::kGradient, transport_->window(), accounts_);
  } else {
    window_arena_ = std::make_unique<Arena>(BufferKind::kGradient, window_bytes, accounts_);
  }
  window_ = window_arena_->take(window_bytes);
  gradient_arena_ = std::make_unique<Arena>(BufferKind::kGradient, private_bytes, accounts_);
  for (const Buffer& b : p.buffers)
    private_gradients_.push_back(b.kind == BufferKind::kGradient && b.partial < 0
                                     ? reinterpret_cast<float*>(gradient_arena_->take(align_up(b.bytes, 256)).data())
                                     : nullptr);
}

void Trainer::make_reductions() {
  bucket_of_.assign(shape_.blocks.size(), -1);
  offset_in_bucket_.assign(shape_.blocks.size(), 0);
  for (size_t b = 0; b < plan_.buckets.size(); ++b) {
    const Bucket& bucket = plan_.buckets[b];
    ReductionSpec spec;
    spec.bucket = static_cast<int>(b);
    spec.lanes = batch_.lanes;
    spec.partial_size = bucket.partial_size;
    spec.result_size = bucket.unit_offset.back() + shape_.blocks[bucket.units.back()].unit_size;
    std::vector<Range> parameters;
    for (size_t k = 0; k < bucket.units.size(); ++k) {
      int unit = bucket.units[k];
      int64_t base = bucket.unit_offset[k];
      bucket_of_[unit] = static_cast<int>(b);
      offset_in_bucket_[unit] = base;
      for (const ParameterShape& p : shape_.blocks[unit].parameters) {
        Piece piece{base + p.offset, p.size, {base + p.offset}};
        for (int64_t extra : p.extra_gradients) piece.src.push_back(base + extra);
        parameters.push_back({piece.dst, piece.dst + piece.size});
        spec.pieces.push_back(std::move(piece));
      }
    }
    for (int r = 0; r < context_.size; ++r) {
      Range owned = lanes_of(r, context_.size, batch_.lanes);
      spec.owned.push_back(owned);
      spec.hosts.push_back(host_of(r, context_.size, static_cast<int>(job_.layout.hosts)));
      spec.offsets.emplace_back();
      for (size_t p = 0; p < subtrees(owned, batch_.lanes).size(); ++p)
        spec.offsets.back().push_back((static_cast<int64_t>(p) * partial_floats_ + bucket_start_[b]) * sizeof(float));
    }
    spec.slices = slices_of(parameters, spec.result_size, context_.size);
    spec.fold = job_.layout.fold == "root" ? FoldAt::kRoot : FoldAt::kOwner;
    spec.kind = job_.numerics.reduce == "ring" ? ReduceKind::kRing : ReduceKind::kExact;
    my_chunks_.push_back(chunks_to_norm(bucket, spec.slices[context_.rank]));
    reductions_.push_back(make_reduction(spec, *transport_, window_));
    accounts_.add(BufferKind::kMessage, reductions_.back()->scratch_bytes());
    specs_.push_back(std::move(spec));
  }
}

/// The chunks in `slice` of the parameters that count in norms.
std::vector<Trainer::Chunk> Trainer::chunks_to_norm(const Bucket& bucket, Range slice) const {
  std::vector<Chunk> chunks;
  for (size_t k = 0; k < bucket.units.size(); ++k) {
    const int unit = bucket.units[k];
    const auto& parameters = shape_.blocks[unit].parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!updater_->counts(unit, i)) continue;
      const int64_t begin = bucket.unit_offset[k] + parameters[i].offset;
      for (const Range& chunk : chunks_of({{begin, begin + parameters[i].size}}))
        if (slice.contains(chunk.begin)) chunks.push_back({chunk, unit});
    }
  }
  return chunks;
}

}  // namespace tutti
