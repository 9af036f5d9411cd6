// One rank of a training run: it plans, connects, and then takes steps. The same class runs alone and among many.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/collectives.h"
#include "comm/reduction.h"
#include "config/job.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "exec/executor.h"
#include "launch/local.h"
#include "model/runner.h"
#include "model/segment.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "plan/check.h"
#include "train/metrics.h"
#include "train/units.h"
#include "train/update.h"
#include "train/vote.h"

namespace tutti {

struct StepReport {
  int64_t step = 0;  ///< number of steps committed, this one included
  double loss = 0, gradient_norm = 0, lr = 0, seconds = 0;
  bool stop = false;  ///< a rank was asked to stop: all ranks see it at the same step
};

class Trainer {
 public:
  /// Collective over all ranks of `context`. `model` and `job` must outlive it. With `checkpoint` the state comes from
  /// there. `own` is for layout.partition = "own".
  Trainer(const Job& job, const Model& model, RankContext& context, const std::string& checkpoint,
          const OwnPartition& own = {});
  ~Trainer();

  /// One step over all ranks. Throws CommError when a peer is lost, Error naming step, lane and block when a loss or
  /// gradient is not finite.
  StepReport step();
  /// Over train.eval_batches of the held-out records a lane, or all test records; the same on every rank and layout.
  Metrics evaluate();
  Metrics evaluate_test();
  /// Takes note of an evaluation's watched metric: the schedule follows it from the next step on.
  Judgement watch(double value);
  const Watched& watched() const { return watched_; }
  /// What was trained on in which order since this trainer started, over all ranks. Collective.
  uint64_t order_digest();
  /// Every rank's state hash is compared; throws Error when one differs. Collective.
  std::string agreed_hash();

  int64_t committed() const { return step_; }
  State state() const;
  const Units& units() const { return *units_; }
  const Split& data() const { return data_; }
  const ModelShape& shape() const { return shape_; }
  const Plan& plan() const { return plan_; }
  const Program& program() const { return plan_.programs[context_.rank]; }
  const Accounts& accounts() const { return accounts_; }
  const Trace& trace() const { return trace_; }
  Duration loader_stall() const { return loader_->stalled(); }
  const Partition& partition() const { return partition_; }
  const Transport& transport() const { return *transport_; }

 private:
  struct Chunk {
    Range range;
    int unit;
  };

  DataGroup data_group() const;
  LoaderOptions loader_options() const;
  void connect();
  void place_gradients(size_t window_bytes);
  void make_reductions();
  Handlers handlers();
  float* gradient(int buffer, int unit) const;
  void backward(const Instruction& instruction);
  std::vector<Chunk> chunks_to_norm(const Bucket& bucket, Range slice) const;
  void fold(const Instruction& instruction);
  void norm(const Instruction& instruction);
  void vote();
  void share_unit_squares();
  void update(const Instruction& instruction, uint64_t step);
  Pass pass_of(int lane, int micro, int64_t step) const;
  [[noreturn]] void explain_nonfinite();

  const Job& job_;
  const Model& model_;
  RankContext& context_;
  const Duration timeout_;
  Batch batch_;
  Range lanes_;
  Accounts accounts_;
  Trace trace_;
  Split data_;
  ModelShape shape_;
  Plan plan_;
  std::vector<int> bucket_of_;             // by unit
  std::vector<int64_t> offset_in_bucket_;  // by unit, floats
  std::vector<int64_t> bucket_start_;      // floats from a partial's start
  int64_t partial_floats_ = 0;

  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Channel> data_channel_, main_channel_, loader_channel_;
  std::unique_ptr<Arena> window_arena_, gradient_arena_;
  std::span<std::byte> window_;
  std::vector<float*> private_gradients_;  // by buffer of the program; null: in the window or no gradient
  std::vector<ReductionSpec> specs_;
  std::vector<std::unique_ptr<Reduction>> reductions_;
  std::vector<std::vector<Chunk>> my_chunks_;  // by bucket, of my slice; of the parameters that count in norms
  std::unique_ptr<Units> units_;
  std::unique_ptr<Updater> updater_;
  std::unique_ptr<ModelRunner> runner_;
  Order order_;
  Partition partition_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Executor> executor_;

  int64_t step_ = 0;   // steps committed
  int64_t round_ = 0;  // steps run by this trainer: the transports count from 0
  const std::vector<at::Tensor>* micro_batch_ = nullptr;
  std::vector<float*> unit_gradients_;  // where the running backward writes, by unit
  Vote mine_, all_;
  std::vector<ExactSum> unit_squares_;  // by unit, for train.clip_by = "unit": mine, then all ranks'
  StepScalars scalars_;
  Watched watched_;
};

}  // namespace tutti
