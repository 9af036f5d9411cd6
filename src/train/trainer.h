// One rank of a training run: it takes steps, alone and among many, on the host's cores and on a
// device. What it has of its own is the worker's; with whom and how it runs is the epoch's, and it
// may change between two steps or after a failure.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "eval/metrics.h"
#include "train/epoch_run.h"
#include "train/worker.h"

namespace tutti {

struct StepReport {
  int64_t step = 0;  ///< number of steps committed, this one included
  double loss = 0, gradient_norm = 0, lr = 0, seconds = 0;
  bool stop = false;  ///< a rank was asked to stop: all ranks see it at the same step
  /// A rank was still writing its share of a checkpoint when it voted; likewise.
  bool saving = false;
  /// float16: its gradients overflowed, nothing but the loss scale changed
  bool skipped = false;
};

class Trainer {
 public:
  /// Begins the first epoch, of all workers, in the job's layout. Collective over all ranks of
  /// `context`. `model`, `job` and `device` must outlive it. With `checkpoint` the state comes from
  /// there. `own` is for layout.partition = "own".
  Trainer(const Job& job, const Model& model, RankContext& context, const std::string& checkpoint,
          const OwnPartition& own = {}, RankDevice* device = nullptr,
          const WrapTransport& wrap = {});
  ~Trainer();

  /// Ends the epoch and begins the next one, in this process and with the same state. Collective
  /// over all workers of the run, spares included. May be called between two steps, and after a
  /// CommError: then a step that anybody knows to be committed is finished everywhere, and one that
  /// nobody does has left no trace and is taken again. A worker that is no member of the next epoch
  /// is a spare: it may be called in again. Throws ConfigError on all of them where the model does
  /// not run on the layout: then nothing has changed. After any other failure this worker still has
  /// its state, but nothing to take steps with: it can only enter an epoch, by a number that is
  /// higher than that of the failed one. CommError also says that some state was lost with a peer.
  void enter(const Membership& next, const LayoutConfig& layout);
  /// Its number is that of the last epoch that this worker has tried to enter.
  const Membership& membership() const { return membership_; }

  /// One step over all ranks. Throws CommError when a peer is lost, Error naming step, lane and
  /// block when a loss or gradient is not finite.
  StepReport step();
  /// Evaluates train.eval_batches batches of held-out records per lane, or all test records. The
  /// result is the same on every rank and layout.
  Metrics evaluate();
  Metrics evaluate_test();
  /// Takes note of an evaluation's watched metric: the schedule follows it from the next step on.
  Judgement watch(double value);
  /// What was trained on in which order since this trainer started, over all ranks. Collective.
  uint64_t order_digest();
  /// Every rank's state hash is compared; throws Error when one differs. Collective.
  std::string agreed_hash();

  int64_t committed() const { return worker_.progress.step; }
  const Progress& progress() const { return worker_.progress; }
  /// Writes a checkpoint of the state as it is now, every rank its share; its path. Collective.
  std::string save(SaveRequest request);
  /// Takes the room for copies that let steps go on while a checkpoint is written. Returns why
  /// there is none: then begin_save() writes before it returns. Collective.
  std::string prepare_saves();
  /// Begins to write a checkpoint of the state as it is now, every rank its share. Called by all
  /// ranks after the same step, when none is being written: a step's report says that of all ranks.
  /// The requests' counters are filled in here.
  void begin_save(SaveRequest request);
  /// Waits for the checkpoint that was begun; its path, or the Error that ended it. Collective.
  std::string end_save();
  /// Whether this rank holds all parameters.
  bool whole() const;

  const Units& units() const { return *worker_.state.units; }
  std::vector<std::string> slots() const { return worker_.updater.slots(); }
  const Split& data() const { return worker_.data; }
  const ModelShape& shape() const { return worker_.shape; }
  const Accounts& accounts() const { return worker_.accounts; }
  bool on_device() const { return worker_.on_device(); }
  const RankDevice* device() const { return worker_.device; }  ///< null: the host's cores

  /// What belongs to the epoch. A spare has none of it, nor has a worker whose last epoch failed.
  Placement& placement() { return run().engine(); }
  RunnerOptions runner_options() const { return run().engine().options(); }
  const Plan& plan() const { return run().plan(); }
  const Program& program() const { return run().program(); }
  int64_t forecast_bytes() const {
    return run().forecast_bytes() + static_cast<int64_t>(copied_.size_bytes());
  }
  const DeviceForecast& device_forecast() const { return run().device_forecast(); }
  const DeviceShare& device_share() const { return run().device_share(); }
  const Trace& trace() const { return run().trace(); }
  double traced_seconds() const { return run().engine().traced_seconds(); }
  Duration loader_stall() const { return run().loader().stalled(); }
  const Partition& partition() const { return run().partition(); }
  const Transport& transport() const { return run().transport(); }

 private:
  EpochRun& run() const;
  template <class Collective>
  auto together(Collective&& collective);
  template <class Value>
  void gather(const Value& mine, std::vector<Value>& all);
  Metrics evaluate_records(const Dataset& records, int64_t count);

  void settle(Rendezvous& meeting);
  void finish(const Decision& decision);
  std::vector<StatePiece> given_pieces() const;
  void take_over(const Membership& all, const LayoutConfig& layout, Rendezvous& meeting,
                 const HeldState& held);
  void share_digests(const Membership& next, Rendezvous& meeting);
  /// As it is now, wherever it is.
  Collector& state();
  std::string write(const SaveRequest& request, std::span<const float> copy);
  StateCounters counters() const { return counters_of(worker_.job, worker_.progress); }
  [[noreturn]] void explain_nonfinite(const StepRequest& request);

  Worker worker_;
  const WrapTransport wrap_;
  Membership membership_;
  std::unique_ptr<EpochRun> run_;  // null: a spare, or one that could not enter an epoch
  Decision settled_;               // of the step that the last epoch ended with
  bool left_ = false;              // the last step, by a CommError
  bool finished_ = false;          // ... and it was finished here: copies of others' values are old
  std::unique_ptr<Arena> copy_;    // of what this rank writes; null: steps wait for a checkpoint
  std::span<float> copied_;        // ... its values
  bool prepared_ = false;          // room for it was asked for, by all workers or none
  std::future<std::string> saved_;  // the path of the checkpoint that was begun
};

}  // namespace tutti
