// What one rank of a run does from its first step to its last: steps, evaluations, checkpoints, and
// the events that tell of them (train/run.h).
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "config/timeout.h"
#include "launch/local.h"
#include "train/run.h"
#include "train/run_folder.h"
#include "train/trainer.h"

namespace tutti {

class Reporter;

/// Made once the trainer is ready; files of the run are touched from here on. All that it is given
/// must outlive it.
class Session {
 public:
  /// The traces' times count from `origin`.
  Session(const RunOptions& options, const RunFolder& folder, const Model& model, Trainer& trainer,
          Time origin, RankContext& context);
  ~Session();
  /// Trains up to options.stop_at or train.steps, or until an early stop or a request to stop.
  /// Collective.
  void run();

 private:
  void announce();
  void check_watched() const;
  int64_t take_step();
  bool goes_on();
  nlohmann::json evaluate();
  void watch(const nlohmann::json& metrics);
  void test();
  void save();
  void save_best();
  void begin_save(const std::string& folder, std::function<void(const std::string& saved)> prune);
  void end_save();
  void finish(double seconds);
  void hand_back(const std::string& hash);
  /// How long the others wait for work of rank 0 that may take any time, such as writing a large
  /// state.
  Patience patience() const { return context_.while_working(timeout_of(job_)); }
  nlohmann::json seconds_by_kind() const;
  double matmul_share();

  const RunOptions& options_;
  const Job& job_;
  const RunFolder& folder_;
  const Model& model_;
  Trainer& trainer_;
  RankContext& context_;
  const Time origin_;
  const bool first_;
  const int64_t last_;
  const bool watches_;
  std::unique_ptr<Reporter> reporter_;
  bool stop_ = false, early_ = false;
  bool compared_ = false;             // baseline_ was asked for: it is counted once
  std::optional<Baseline> baseline_;  // what the held-out loss is compared with
  int64_t saved_ = -1;                // the step of the last checkpoint that was begun, best apart
  bool due_ = false;                  // a checkpoint: it waits while another one is being written
  bool writing_ = false;              // a checkpoint was begun and has not been told of
  double stepping_ = 0, evaluating_ = 0, saving_ = 0;
  int64_t steps_ = 0;
};

}  // namespace tutti
