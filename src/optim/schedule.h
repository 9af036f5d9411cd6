// The course of the learning rate, and what depends on held-out metrics: the plateau schedule,
// early stopping, the best checkpoint. Decisions are pure functions of small values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/job.h"

namespace tutti {

/// What evaluations have shown so far. It is part of the state: as text it is hashed and saved
/// with it.
struct Watched {
  double best = 0;
  int64_t best_step = -1;  ///< -1: nothing was evaluated yet
  int64_t stale = 0;       ///< evaluations since the best: early stopping
  int64_t plateau = 0;     ///< evaluations without improvement since the rate last fell
  double rate = 1;         ///< plateau: what lr is multiplied by
  bool operator==(const Watched&) const = default;
};

/// The text is exact to the last bit, and empty for a Watched that has seen nothing. watched_from
/// throws Error on text that is no such record.
std::string to_text(const Watched& watched);
Watched watched_from(const std::string& text);

/// Whether larger values are better: true for all metrics but loss, perplexity, mse and mae.
bool larger_is_better(const std::string& metric);
/// What one more evaluation means.
struct Judgement {
  Watched watched;
  bool improved = false;  ///< by more than min_change; a finite first value always is
  bool stop = false;      ///< early stopping
};
/// Judges `value`, that of train.watch at `step`. A value that is not finite is no improvement.
Judgement judge(const TrainConfig& config, const Watched& before, double value, int64_t step);

/// The schedules that there are.
std::vector<std::string> rate_schedule_names();

/// The learning rate of a step. Warm-up is linear from lr/warmup to lr. Then, with p the part of
/// the way from the warm-up to train.steps (1 from there on):
///   constant       lr
///   step           lr * factor^floor(t / every)        t: steps since the warm-up
///   exponential    lr * factor^(t / every)
///   linear, polynomial   from lr to final_lr * lr, as (1 - p)^power (linear: power 1)
///   cosine         from lr to final_lr * lr in half a wave; with cycle > 0 it restarts after
///                  cycle, cycle * cycle_growth, ... steps
///   one-cycle      in half waves up from lr / 25 over the warm-up and down to final_lr * lr
///   inverse-sqrt   lr * sqrt(max(warmup, 1) / (step + 1))
///   plateau        lr * watched.rate, which judge() multiplies by `factor`, at least final_lr
double learning_rate(const TrainConfig& config, int64_t step, const Watched& watched = {});

}  // namespace tutti
