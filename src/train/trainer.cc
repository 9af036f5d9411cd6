// A step, and what is asked between steps. How one epoch follows another is in change_epoch.cc;
// what a step computes is the engine's (engine/engine.h).
#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <system_error>

#include "base/error.h"
#include "comm/gather.h"
#include "config/timeout.h"
#include "eval/evaluate.h"
#include "net/quiet_thread.h"
#include "state/load_checkpoint.h"
#include "train/save_room.h"

namespace tutti {

namespace {

/// Lowers a flag, however its scope is left.
class Lowered {
 public:
  explicit Lowered(std::atomic<bool>& flag) : flag_(flag) {}
  ~Lowered() {
    flag_ = false;
    flag_.notify_all();
  }
  Lowered(const Lowered&) = delete;
  Lowered& operator=(const Lowered&) = delete;

 private:
  std::atomic<bool>& flag_;
};

}  // namespace

Trainer::Trainer(const Job& job, const Model& model, RankContext& context,
                 const std::string& checkpoint, const OwnPartition& own, RankDevice* device,
                 const WrapTransport& wrap)
    : worker_(job, model, context, own, device),
      wrap_(wrap),
      membership_(first_epoch(context.size, context.rank, static_cast<int>(job.layout.hosts),
                              job.layout.address)),
      run_(std::make_unique<EpochRun>(worker_, job.layout, membership_, wrap_)) {
  worker_.state = run_->make_state(/*fresh=*/true);
  if (!checkpoint.empty()) {
    const Units& units = *worker_.state.units;
    worker_.progress =
        progress_from(job, load_checkpoint(checkpoint, units.entries(), units.pieces()));
    units.upload();
  }
  run_->begin();
}

Trainer::~Trainer() {
  if (saved_.valid()) saved_.wait();
}

EpochRun& Trainer::run() const {
  TUTTI_CHECK(run_ != nullptr, "worker {} takes no part in an epoch", worker_.context.worker);
  return *run_;
}

/// Runs what the members do together. A rank whose connections break in it goes on to another
/// epoch, or ends: the others must not wait for it.
template <class Collective>
auto Trainer::together(Collective&& collective) {
  try {
    return collective();
  } catch (const CommError&) {
    worker_.context.failing();  // before others lose this rank
    run().leave();
    throw;
  }
}

StepReport Trainer::step() {
  Clock& clock = worker_.context.clock;
  const Time begin = clock.now();
  const StepRequest request = request_after(worker_.job, worker_.progress);
  left_ = true;
  const StepVerdict verdict = together([&] { return run().engine().run(request); });
  left_ = false;
  if (!verdict.finite && !may_skip(worker_.progress.scale, worker_.job.numerics))
    explain_nonfinite(request);
  worker_.progress = next_progress(worker_.job, worker_.progress, verdict.finite);
  const double taken = std::chrono::duration<double>(clock.now() - begin).count();
  return {committed(), verdict.loss, verdict.gradient_norm, request.lr,
          taken,       verdict.stop, verdict.saving,        !verdict.finite};
}

Metrics Trainer::evaluate() {
  const int64_t most =
      worker_.job.train.eval_batches * worker_.batch.lanes * worker_.batch.micro_batch_size;
  const Dataset& records = *worker_.data.held_out;
  return evaluate_records(records, std::min(most, records.size()));
}

Metrics Trainer::evaluate_test() {
  const Dataset& records = *worker_.data.test;
  return evaluate_records(records, records.size());
}

Metrics Trainer::evaluate_records(const Dataset& records, int64_t count) {
  return together([&] {
    return tutti::evaluate(worker_.model, run().engine(), records, count, worker_.batch,
                           worker_.job.train.seed, committed(), run().channel());
  });
}

Judgement Trainer::watch(double value) {
  Judgement judgement =
      judge(worker_.job.train, worker_.progress.watched, value, worker_.progress.step);
  worker_.progress.watched = judgement.watched;
  return judgement;
}

template <class Value>
void Trainer::gather(const Value& mine, std::vector<Value>& all) {
  together([&] {
    run().channel().all_gather(std::as_bytes(std::span(&mine, 1)),
                               std::as_writable_bytes(std::span(all)));
  });
}

uint64_t Trainer::order_digest() {
  const uint64_t mine = worker_.order_digest + run().engine().order_digest();
  std::vector<uint64_t> all(run().context().size);
  gather(mine, all);
  return std::accumulate(all.begin(), all.end(), uint64_t{0});
}

bool Trainer::whole() const {
  for (size_t u = 0; u < shape().blocks.size(); ++u)
    if (units().held(static_cast<int>(u)).parameters != Range{0, shape().blocks[u].unit_size})
      return false;
  return true;
}

Collector& Trainer::state() {
  if (saved_.valid()) saved_.wait();  // it reads the last copy
  if (const std::function<void()> copied = run().engine().copy_out()) copied();
  return run().collector();
}

/// Together with the other ranks' writers, over a channel of theirs. A large state may take longer
/// than layout.timeout to write: they wait for as long as others work.
std::string Trainer::write(const SaveRequest& request, std::span<const float> copy) {
  const auto tell_all = [this](const std::string& mine) {
    return gather_bytes(mine, run().saver_channel());
  };
  return run().collector().save(request, tell_all, copy);
}

std::string Trainer::save(SaveRequest request) {
  request.counters = counters();
  state();  // as it is now, in the host's memory
  return together([&] { return write(request, {}); });
}

std::string Trainer::prepare_saves() {
  copy_.reset();
  copied_ = {};
  prepared_ = true;
  const LayoutConfig& layout = run().job().layout;
  if (!layout.save_beside) return "layout.save_beside = false";
  if (on_device()) return "";  // it has a copy of its values in the host's memory anyway
  if (layout.offload != Offload::kNone) return "the values are offloaded to a file";

  // All hosts need the room, so that all ranks do the same.
  const int64_t floats = run().collector().share();
  const RankNeeds mine{run().membership().rank_hosts()[run().context().rank], run().free_at_start(),
                       run().forecast_bytes() + floats * static_cast<int64_t>(sizeof(float))};
  std::vector<RankNeeds> all(run().context().size);
  gather(mine, all);
  if (std::string reason = lacks_room(all); !reason.empty()) return reason;

  // Written to once now, so that no save waits for the system's pages.
  copy_ = std::make_unique<Arena>(BufferKind::kCopy, static_cast<size_t>(floats) * sizeof(float),
                                  worker_.accounts);
  copied_ = copy_->take_floats(floats);
  std::fill(copied_.begin(), copied_.end(), 0.0f);
  return "";
}

void Trainer::begin_save(SaveRequest request) {
  TUTTI_CHECK(!saved_.valid(), "another checkpoint is being written");
  request.counters = counters();
  const std::function<void()> out = run().engine().copy_out();
  const bool beside = out != nullptr ? run().job().layout.save_beside : copy_ != nullptr;
  if (!beside) {
    if (out) out();
    std::promise<std::string> written;
    saved_ = written.get_future();
    return written.set_value(together([&] { return write(request, {}); }));
  }

  // The next step begins beside the copy, too. A device's Updates wait for it by themselves; on the
  // host the vote does.
  Saving& saving = worker_.saving;
  saving.writing = true;
  saving.copying = !out;
  const NoSignals while_it_starts;
  try {
    saved_ = std::async(std::launch::async, [this, &saving, out, request = std::move(request)] {
      const Lowered written(saving.writing);
      {
        const Lowered copied(saving.copying);
        out ? out() : run().collector().copy_share(copied_);
      }
      return write(request, copied_);
    });
  } catch (const std::system_error& error) {
    saving.writing = saving.copying = false;
    throw Error(fmt::format("cannot start a thread for a checkpoint: {}", error.what()));
  }
}

std::string Trainer::end_save() {
  return together([&] { return saved_.get(); });
}

std::string Trainer::agreed_hash() {
  return together([&] { return state().hash(counters()); });
}

void Trainer::explain_nonfinite(const StepRequest& request) {
  const RankContext& context = run().context();
  LoaderOptions options = run().loader_options();
  options.depth = 1;
  Loader loader(options, context.clock, &context.control.cancel);
  const NonFinitePlace mine = together([&] { return run().engine().search(request, loader); });
  std::vector<NonFinitePlace> places(context.size);
  gather(mine, places);
  // Steps are counted from 1 for people.
  throw Error(describe_nonfinite(places, committed() + 1, shape()));
}

}  // namespace tutti
