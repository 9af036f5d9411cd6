// Steps that save, as a run's session does it.
#pragma once

#include <functional>
#include <string>

#include "state/checkpoint.h"
#include "train/trainer.h"

namespace tutti {

/// Takes steps; with a folder a checkpoint is due before the first and then every `every` of them,
/// and waits its turn. Only the last is kept, and the one that is still being written at the end is
/// end_saves()'s.
class SavingSteps {
 public:
  SavingSteps(Trainer& trainer, std::string folder, int every)
      : trainer_(trainer), folder_(std::move(folder)), every_(every) {}

  void take(int count, const std::function<void(const StepReport&)>& after) {
    for (int n = 0; n < count; ++n) {
      due_ |= !folder_.empty() && n % every_ == 0;
      if (due_ && !writing_) begin();
      const StepReport report = trainer_.step();
      if (writing_ && !report.saving) end();
      after(report);
    }
  }
  void end() {
    if (writing_) trainer_.end_save();
    writing_ = false;
  }

 private:
  void begin() {
    trainer_.begin_save({.folder = folder_, .prune = [folder = folder_](const std::string& saved) {
                           keep_only(folder, saved);
                         }});
    writing_ = true;
    due_ = false;
  }

  Trainer& trainer_;
  const std::string folder_;
  const int every_;
  bool due_ = false, writing_ = false;
};

}  // namespace tutti
