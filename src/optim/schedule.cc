// Schedules and judgements as pure functions: of the step, and of what evaluations have shown,
// which is a small value of its own. Every rank computes them by itself and finds the same.
#include "optim/schedule.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <string_view>

#include "base/error.h"
#include "base/portable_math.h"
#include "config/job_parts.h"

namespace tutti {

namespace {

/// Half a cosine wave, from 1 at p = 0 to 0 at p = 1.
double half_wave(double p) { return 0.5 * (1 + portable::cos(std::numbers::pi * p)); }

double between(double low, double high, double part) { return low + (high - low) * part; }

/// How far step t is in its cycle, in [0, 1]. Cycle i begins at cycle * (growth^i - 1) / (growth -
/// 1), and is cycle * growth^i long.
double part_of_cycle(double t, double cycle, double growth) {
  if (growth == 1) return std::fmod(t, cycle) / cycle;
  const auto begin = [&](double i) {
    return cycle * (portable::pow(growth, i) - 1) / (growth - 1);
  };
  // The inverse of begin() is a logarithm, whose rounding may be off by one near a border.
  double i = std::floor(portable::log(t / cycle * (growth - 1) + 1) / portable::log(growth));
  if (i > 0 && t < begin(i)) --i;  // the logarithm was rounded over a border
  if (t >= begin(i + 1)) ++i;
  return std::clamp((t - begin(i)) / (cycle * portable::pow(growth, i)), 0.0, 1.0);
}

double cosine(const TrainConfig& config, double t, double p) {
  double part = p;
  if (config.cycle > 0) {
    part = part_of_cycle(t, static_cast<double>(config.cycle), config.cycle_growth);
    if (p == 1 && part == 0) part = 1;  // a cycle that ends with the job ends low: no other follows
  }
  return between(config.final_lr, 1, half_wave(part));
}

/// Up in a straight line.
double straight_warmup(const TrainConfig& config, int64_t step) {
  return config.lr * static_cast<double>(step + 1) / static_cast<double>(config.warmup);
}

/// Up in half a wave, from lr / 25: the usual start of a one-cycle schedule.
double one_cycle_warmup(const TrainConfig& config, int64_t step) {
  constexpr double kStart = 1.0 / 25;
  const double part = static_cast<double>(step) / static_cast<double>(config.warmup);
  return config.lr * between(kStart, 1, 1 - half_wave(part));
}

/// Where a step is in its schedule, after the warm-up.
struct Course {
  double steps = 0;  ///< since the warm-up
  double part = 0;   ///< of the way to the job's end, in [0, 1]
  int64_t step = 0;  ///< of the job
};

/// A schedule of the table in config/job_parts.cc.
struct Schedule {
  std::string_view name;
  /// What train.lr is multiplied by after the warm-up.
  double (*factor)(const TrainConfig& config, const Course& at, const Watched& watched);
  /// The rate of a step of the warm-up.
  double (*warmup)(const TrainConfig& config, int64_t step) = straight_warmup;
};

double every(const TrainConfig& config, const Course& at) {
  return at.steps / static_cast<double>(config.every);
}

constexpr Schedule kSchedules[] = {
    {"constant", [](const TrainConfig&, const Course&, const Watched&) { return 1.0; }},
    {"step", [](const TrainConfig& c, const Course& at,
                const Watched&) { return portable::pow(c.factor, std::floor(every(c, at))); }},
    {"exponential", [](const TrainConfig& c, const Course& at,
                       const Watched&) { return portable::pow(c.factor, every(c, at)); }},
    {"linear", [](const TrainConfig& c, const Course& at,
                  const Watched&) { return between(c.final_lr, 1, 1 - at.part); }},
    {"polynomial",
     [](const TrainConfig& c, const Course& at, const Watched&) {
       return between(c.final_lr, 1, portable::pow(1 - at.part, c.power));
     }},
    {"cosine", [](const TrainConfig& c, const Course& at,
                  const Watched&) { return cosine(c, at.steps, at.part); }},
    {"one-cycle",
     [](const TrainConfig& c, const Course& at, const Watched&) {
       return between(c.final_lr, 1, half_wave(at.part));
     },
     one_cycle_warmup},
    {"inverse-sqrt",
     [](const TrainConfig& c, const Course& at, const Watched&) {
       const auto start = static_cast<double>(std::max<int64_t>(c.warmup, 1));
       return std::sqrt(start / static_cast<double>(at.step + 1));
     }},
    {"plateau",
     [](const TrainConfig&, const Course&, const Watched& watched) { return watched.rate; }},
};

const Schedule& schedule_named(std::string_view name) {
  for (const Schedule& schedule : kSchedules)
    if (schedule.name == name) return schedule;
  throw Error(fmt::format("train.schedule = \"{}\": not a schedule", name));
}

}  // namespace

std::vector<std::string> rate_schedule_names() { return row_names(kSchedules); }

double learning_rate(const TrainConfig& config, int64_t step, const Watched& watched) {
  const Schedule& schedule = schedule_named(config.schedule);
  if (step < config.warmup) return schedule.warmup(config, step);

  // Past the job's end a schedule keeps its last value.
  const int64_t end = std::max(config.steps, config.warmup + 1);
  Course at;
  at.step = std::min(step, end);
  at.steps = static_cast<double>(at.step - config.warmup);
  at.part = at.steps / static_cast<double>(end - config.warmup);
  return config.lr * schedule.factor(config, at, watched);
}

bool larger_is_better(const std::string& metric) {
  return part_named<MetricPart>(metric).larger_is_better;
}

Judgement judge(const TrainConfig& config, const Watched& before, double value, int64_t step) {
  Judgement out{.watched = before};
  Watched& now = out.watched;
  const double gain = larger_is_better(config.watch) ? value - before.best : before.best - value;
  out.improved = std::isfinite(value) && (before.best_step < 0 || gain > config.min_change);

  if (out.improved) {
    now.best = value;
    now.best_step = step;
    now.stale = now.plateau = 0;
    return out;
  }

  // The plateau and early stopping count apart: a lowered rate starts a new wait for the one, not
  // for the other.
  ++now.stale;
  if (part_named<SchedulePart>(config.schedule).watches && ++now.plateau >= config.patience) {
    now.plateau = 0;
    now.rate = std::max(now.rate * config.factor, config.final_lr);
  }

  out.stop = config.early_stop > 0 && now.stale >= config.early_stop;
  return out;
}

std::string to_text(const Watched& watched) {
  if (watched == Watched{}) return {};
  return fmt::format("best {:a} at {} stale {} plateau {} rate {:a}", watched.best,
                     watched.best_step, watched.stale, watched.plateau, watched.rate);
}

Watched watched_from(const std::string& text) {
  Watched watched;
  if (text.empty()) return watched;
  const auto bad = [&] { return Error(fmt::format("\"{}\" is no record of evaluations", text)); };
  const char *at = text.data(), *end = at + text.size();

  // Hexadecimal floats are read by from_chars, which knows no locale and needs the prefix and the
  // sign taken off.
  const auto word = [&](std::string_view expected) {
    if (!std::string_view(at, static_cast<size_t>(end - at)).starts_with(expected)) throw bad();
    at += expected.size();
  };

  const auto whole = [&](int64_t& value) {
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc()) throw bad();
    at = next;
  };

  const auto real = [&](double& value) {
    const bool negative = at != end && *at == '-';
    if (negative) ++at;
    word("0x");
    const auto [next, error] = std::from_chars(at, end, value, std::chars_format::hex);
    if (error != std::errc()) throw bad();
    if (negative) value = -value;
    at = next;
  };

  // The text must be just what to_text writes: a damaged record is an error, not a fresh start.
  word("best ");
  real(watched.best);
  word(" at ");
  whole(watched.best_step);
  word(" stale ");
  whole(watched.stale);
  word(" plateau ");
  whole(watched.plateau);
  word(" rate ");
  real(watched.rate);
  if (at != end) throw bad();
  return watched;
}

}  // namespace tutti
