// A step, read aloud: the plan's instructions are walked by the executor; each handler below says what one of them
// means.
#include "train/trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/fp_mode.h"
#include "base/hash.h"
#include "data/resample.h"
#include "model/dry_run.h"
#include "net/make.h"
#include "plan/ddp.h"
#include "state/checkpoint.h"
#include "tensor/threads.h"
#include "train/evaluate.h"
#include "train/nonfinite.h"

namespace tutti {

namespace {

// Tags of the two channels beside the reductions' (which use the bucket's number).
constexpr uint32_t kDataChannel = 1 << 20, kMainChannel = kDataChannel + 64, kLoaderChannel = kMainChannel + 64;
// Bucket arrays start on pages, so that two ranks never write into one.
constexpr int64_t kPageFloats = 1024;

Duration seconds(double s) { return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s)); }

}  // namespace

Trainer::Trainer(const Job& job, const Model& model, RankContext& context, const std::string& checkpoint,
                 const OwnPartition& own)
    : job_(job),
      model_(model),
      context_(context),
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
  Deadline deadline = context_.clock.after(seconds(job_.layout.timeout));
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

  size_t private_bytes = 0;
  const Program& p = program();
  for (const Buffer& b : p.buffers)
    if (b.kind == BufferKind::kGradient && b.partial < 0) private_bytes += align_up(b.bytes, 64);
  bool in_window = !transport_->window().empty();
  if (in_window) {
    window_arena_ = std::make_unique<Arena>(BufferKind::kGradient, transport_->window(), accounts_);
  } else {
    window_arena_ = std::make_unique<Arena>(BufferKind::kGradient, options.window_bytes, accounts_);
  }
  window_ = window_arena_->take(options.window_bytes);
  gradient_arena_ = std::make_unique<Arena>(BufferKind::kGradient, private_bytes, accounts_);
  for (const Buffer& b : p.buffers)
    private_gradients_.push_back(b.kind == BufferKind::kGradient && b.partial < 0
                                     ? reinterpret_cast<float*>(gradient_arena_->take(align_up(b.bytes, 64)).data())
                                     : nullptr);
  Duration timeout = seconds(job_.layout.timeout);
  data_channel_ = std::make_unique<Channel>(*transport_, context_.clock, kDataChannel, timeout);
  main_channel_ = std::make_unique<Channel>(*transport_, context_.clock, kMainChannel, timeout);
  loader_channel_ = std::make_unique<Channel>(*transport_, context_.clock, kLoaderChannel, timeout);
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

/// Where the gradient of `unit` lies in a buffer of the program.
float* Trainer::gradient(int buffer, int unit) const {
  const Buffer& b = program().buffers[buffer];
  if (b.partial < 0) return private_gradients_[buffer];
  return reinterpret_cast<float*>(window_.data()) + b.partial * partial_floats_ + bucket_start_[bucket_of_[unit]] +
         offset_in_bucket_[unit];
}

Pass Trainer::pass_of(int lane, int micro, int64_t step) const {
  return {job_.train.seed, step, lane, micro, first_sample(batch_, step, lane, micro), 0, true};
}

Handlers Trainer::handlers() {
  Handlers on;
  auto set = [&on](Op op, Handler handler) { on[static_cast<int>(op)] = std::move(handler); };
  auto deadline = [this] { return context_.clock.after(seconds(job_.layout.timeout)); };
  set(Op::kLoad, [this](const Instruction& i, uint64_t) { micro_batch_ = &loader_->next(step_, i.lane, i.micro); });
  set(Op::kForward, [this](const Instruction& i, uint64_t) {
    runner_->forward(i.block, i.segment, pass_of(i.lane, i.micro, step_), *micro_batch_);
    bool last = i.block + 1 == static_cast<int>(model_.blocks.size()) &&
                i.segment + 1 == static_cast<int>(model_.blocks[i.block].segments.size());
    if (!last) return;
    mine_.loss.add(runner_->loss().sum);
    mine_.targets.add(runner_->loss().count);
  });
  set(Op::kBackward, [this](const Instruction& i, uint64_t) { backward(i); });
  set(Op::kFold, [this](const Instruction& i, uint64_t) { fold(i); });
  set(Op::kAcquire, [this, deadline](const Instruction& i, uint64_t step) {
    if (step > 0) reductions_[i.bucket]->await_release(step - 1, deadline());
  });
  set(Op::kReduce,
      [this, deadline](const Instruction& i, uint64_t step) { reductions_[i.bucket]->reduce(step, deadline()); });
  set(Op::kNorm, [this](const Instruction& i, uint64_t) { norm(i); });
  set(Op::kGather,
      [this, deadline](const Instruction& i, uint64_t step) { reductions_[i.bucket]->gather(step, deadline()); });
  set(Op::kVote, [this](const Instruction&, uint64_t) { vote(); });
  set(Op::kUpdate, [this](const Instruction& i, uint64_t step) { update(i, step); });
  return on;
}

void Trainer::backward(const Instruction& i) {
  for (int buffer : i.writes) {
    const Buffer& b = program().buffers[buffer];
    if (b.kind != BufferKind::kGradient) continue;
    int unit = b.unit < 0 ? i.block : b.unit;
    unit_gradients_[unit] = gradient(buffer, unit);
  }
  runner_->backward(i.block, i.segment, pass_of(i.lane, i.micro, step_), *micro_batch_, unit_gradients_);
}

void Trainer::fold(const Instruction& i) {
  for (const Add& add : i.adds)
    add_into(gradient(add.into, i.block), gradient(add.from, i.block), shape_.blocks[i.block].gradient_size);
}

void Trainer::norm(const Instruction& i) {
  const float* slice = reductions_[i.bucket]->view(context_.rank);
  int64_t begin = specs_[i.bucket].slices[context_.rank].begin;
  for (const auto& [chunk, unit] : my_chunks_[i.bucket]) {
    const double squares = sum_squares(slice + (chunk.begin - begin), chunk.size());
    mine_.squares.add(squares);
    if (job_.train.clip_by == "unit") unit_squares_[unit].add(squares);
  }
}

/// The commit: after it every rank knows the same norm, loss and decision.
void Trainer::vote() {
  mine_.stop = context_.control.stop.load() != 0 ? 1 : 0;
  std::vector<Vote> votes(context_.size);
  data_channel_->all_gather(std::as_bytes(std::span(&mine_, 1)), std::as_writable_bytes(std::span(votes)));
  all_ = merge(votes);
  if (!all_.finite()) throw NonFinite();
  const TrainConfig& train = job_.train;
  scalars_.step = step_;
  scalars_.lr = learning_rate(train, step_, watched_);
  const double factor = train.clip_by == "norm" ? clip_factor(all_.gradient_norm(), train.clip) : 1;
  scalars_.gradient_scale = factor / all_.divisor();
  if (train.clip_by == "value") scalars_.clip_value = train.clip;
  if (train.clip_by == "unit") share_unit_squares();
}

/// Every rank summed the squares of its slices; a unit's are all ranks'.
void Trainer::share_unit_squares() {
  const size_t units = unit_squares_.size();
  std::vector<ExactSum> all(units * context_.size);
  data_channel_->all_gather(std::as_bytes(std::span(unit_squares_)), std::as_writable_bytes(std::span(all)));
  for (size_t u = 0; u < units; ++u) {
    unit_squares_[u] = {};
    for (int r = 0; r < context_.size; ++r) unit_squares_[u].merge(all[r * units + u]);
  }
}

/// Every parameter of the unit, slice by slice: gradients are read where their owner left them.
void Trainer::update(const Instruction& i, uint64_t step) {
  int unit = i.block, bucket = bucket_of_[unit];
  const ReductionSpec& spec = specs_[bucket];
  int64_t base = offset_in_bucket_[unit];
  StepScalars scalars = scalars_;
  if (job_.train.clip_by == "unit") {
    const double norm = std::sqrt(unit_squares_[unit].value()) / all_.divisor();
    scalars.gradient_scale *= clip_factor(norm, job_.train.clip);
  }
  const auto& parameters = shape_.blocks[unit].parameters;
  std::vector<GradientPiece> pieces;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const int64_t begin = base + parameters[p].offset, end = begin + parameters[p].size;
    pieces.clear();
    for (size_t s = 0; s < spec.slices.size(); ++s) {
      Range part{std::max(begin, spec.slices[s].begin), std::min(end, spec.slices[s].end)};
      if (part.empty()) continue;
      pieces.push_back({part.begin - base, part.size(),
                        reductions_[bucket]->view(static_cast<int>(s)) + (part.begin - spec.slices[s].begin)});
    }
    updater_->update(*units_, unit, p, pieces, scalars, int64_t{batch_.lanes} * batch_.micro_batches);
  }
  // Units are updated in the bucket's order: after the last one nobody here reads the bucket any more.
  if (plan_.buckets[bucket].units.back() == unit) reductions_[bucket]->release(step);
}

StepReport Trainer::step() {
  Time begin = context_.clock.now();
  mine_ = {};
  std::fill(unit_squares_.begin(), unit_squares_.end(), ExactSum{});
  try {
    executor_->run(round_);
  } catch (const NonFinite&) {
    explain_nonfinite();
  }
  ++round_;
  ++step_;
  context_.control.ranks[context_.rank].step.store(step_);
  double taken = std::chrono::duration<double>(context_.clock.now() - begin).count();
  return {step_, all_.mean_loss(), all_.gradient_norm(), scalars_.lr, taken, all_.stop != 0};
}

Metrics Trainer::evaluate() {
  const int64_t most = job_.train.eval_batches * batch_.lanes * batch_.micro_batch_size;
  return tutti::evaluate(model_, *runner_, *data_.held_out, std::min(most, data_.held_out->size()), batch_, lanes_,
                         job_.train.seed, step_, *main_channel_);
}

Metrics Trainer::evaluate_test() {
  return tutti::evaluate(model_, *runner_, *data_.test, data_.test->size(), batch_, lanes_, job_.train.seed, step_,
                         *main_channel_);
}

Judgement Trainer::watch(double value) {
  Judgement judgement = judge(job_.train, watched_, value, step_);
  watched_ = judgement.watched;
  return judgement;
}

uint64_t Trainer::order_digest() {
  const uint64_t mine = loader_->digest();
  std::vector<uint64_t> all(context_.size);
  main_channel_->all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return std::accumulate(all.begin(), all.end(), uint64_t{0});
}

State Trainer::state() const { return units_->state({step_, step_ * batch_.samples(), to_text(watched_)}); }

std::string Trainer::agreed_hash() {
  std::string mine = state_hash(state());
  std::string all(mine.size() * context_.size, ' ');
  main_channel_->all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (int r = 0; r < context_.size; ++r)
    if (std::string other = all.substr(r * mine.size(), mine.size()); other != mine)
      throw Error(fmt::format("rank {} holds state {} but rank {} holds {}: this must never happen", r, other,
                              context_.rank, mine));
  return mine;
}

void Trainer::explain_nonfinite() {
  NonFinitePlace mine = find_nonfinite(model_, shape_, *runner_, loader_options(), job_.train.seed, context_);
  std::vector<NonFinitePlace> places(context_.size);
  main_channel_->all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(places)));
  throw Error(describe_nonfinite(places, step_ + 1, shape_));  // steps are counted from 1 for people
}

}  // namespace tutti
