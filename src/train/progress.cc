// Progress is replaced as a whole. A checkpoint keeps it as text, with the loss scale after a
// semicolon.
#include "train/progress.h"

namespace tutti {

Progress first_progress(const Job& job) { return {0, {}, first_loss_scale(job.numerics)}; }

StepRequest request_after(const Job& job, const Progress& now) {
  return {now.step, now.step - now.scale.skipped, learning_rate(job.train, now.step, now.watched),
          now.scale.scale};
}

Progress next_progress(const Job& job, const Progress& now, bool finite) {
  return {now.step + 1, now.watched, next_loss_scale(now.scale, finite, job.numerics)};
}

StateCounters counters_of(const Job& job, const Progress& progress) {
  std::string schedule = to_text(progress.watched);
  if (const std::string scale = to_text(progress.scale); !scale.empty()) schedule += ";" + scale;
  return {progress.step, progress.step * batch_of(job.train).samples(), schedule};
}

Progress progress_from(const Job& job, const StateCounters& counters) {
  const std::string& text = counters.schedule;
  const size_t cut = text.find(';');
  Progress progress{counters.step, watched_from(text.substr(0, cut)),
                    first_loss_scale(job.numerics)};
  if (cut == std::string::npos) return progress;
  const LossScale before = loss_scale_from(text.substr(cut + 1));
  if (job.numerics.precision == Precision::kFloat16 && before.scale > 1) {
    progress.scale = before;
  } else {
    progress.scale.skipped = before.skipped;
  }
  return progress;
}

}  // namespace tutti
