// What one rank of a run does from its first step to its last: steps, evaluations, checkpoints, and
// the events that tell of them (train/run.h).
#pragma once

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

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
  void settle();
  void tell_saved(int64_t step, const std::string& path);
  void finish(double seconds);
  void hand_back(const std::string& hash);
  /// How long the others wait for work of rank 0 that may take any time, such as writing a large
  /// state.
  Patience patience() const { return context_.while_working(timeout_of(job_)); }
  void wait_for_all() { context_.rendezvous.exchange({}, patience()); }
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
  std::thread writer_;                // of a checkpoint that was copied out of a device
  std::atomic<bool> writer_ended_{false};
  std::string written_;
  std::exception_ptr write_failure_;
  double stepping_ = 0, evaluating_ = 0, saving_ = 0;
  int64_t steps_ = 0;
};

}  // namespace tutti
