// What a run has come to is one value: a step makes the next one of it, a checkpoint holds all of
// it.
#include "train/progress.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

Job job_in(const std::string& precision) {
  Job job = parse_job("", "job", {});
  job.numerics.precision = value_named<Precision>(precision).value();
  job.numerics.loss_scale = 1024;
  return job;
}

Progress some_progress() {
  Progress progress;
  progress.step = 7;
  progress.watched = {0.1, 5, 2, 1, 0.3};
  progress.scale = {512, 3, 2};
  return progress;
}

TEST(Progress, AStepThatIsTakenCountsAndOneThatIsSkippedCountsAsSkipped) {
  const Job job = job_in("float16");
  const Progress before = some_progress();
  const Progress taken = next_progress(job, before, true),
                 skipped = next_progress(job, before, false);
  EXPECT_EQ(taken.step, 8);
  EXPECT_EQ(skipped.step, 8);
  EXPECT_EQ(taken.scale.skipped, 2);
  EXPECT_EQ(skipped.scale.skipped, 3);
  EXPECT_EQ(skipped.scale.scale, 256);
  EXPECT_EQ(taken.watched, before.watched);
  EXPECT_EQ(before, some_progress()) << "until the next one takes its place nothing has changed";
}

TEST(Progress, ASkippedStepIsNoUpdate) {
  const StepRequest request = request_after(job_in("float16"), some_progress());
  EXPECT_EQ(request.step, 7);
  EXPECT_EQ(request.updates, 5);
  EXPECT_EQ(request.loss_scale, 512);
}

TEST(Progress, ComesBackFromACheckpointToTheLastBit) {
  const Job job = job_in("float16");
  EXPECT_EQ(progress_from(job, counters_of(job, some_progress())), some_progress());
  EXPECT_EQ(progress_from(job, counters_of(job, first_progress(job))), first_progress(job));
}

TEST(Progress, InAnotherPrecisionTheScaleIsItsOwnAndSkippedStepsStaySkipped) {
  const Job job = job_in("bfloat16");
  const Progress resumed = progress_from(job, counters_of(job_in("float16"), some_progress()));
  EXPECT_EQ(resumed.scale.scale, 1);
  EXPECT_EQ(resumed.scale.skipped, 2);
  EXPECT_EQ(resumed.step, 7);
}

}  // namespace
}  // namespace tutti
