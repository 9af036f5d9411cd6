// The tables of parts are in step: what has a row in config/job_parts.cc has one in the folder that
// implements it, and what the rows say is true of what is made.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "config/job_parts.h"
#include "config/model_rules.h"
#include "config/schema.h"
#include "data/core/dataset.h"
#include "engine/updater.h"
#include "eval/metrics.h"
#include "model/core/data_borders.h"
#include "model/loss/loss.h"
#include "model/make_model.h"
#include "model/rules/rules.h"
#include "net/make.h"
#include "optim/schedule.h"
#include "plan/make/pipeline_schedule.h"
#include "plan/search/calibration.h"

namespace tutti {
namespace {

Job with(const char* key, std::string_view value) {
  Job job = parse_job("", "job", {{"data.path", "/nowhere"}});
  resolve(job, this_machine(), {});
  const Key& of = key_named(key);
  of.set(job, std::string(value));
  return job;
}

/// Every row of the one table has a row in the other, whatever their order.
void expect_same(std::vector<std::string> rows, std::vector<std::string> implemented) {
  std::sort(rows.begin(), rows.end());
  std::sort(implemented.begin(), implemented.end());
  EXPECT_EQ(rows, implemented);
}

TEST(Parts, AreTheRowsOfTheFoldersThatImplementThem) {
  expect_same(names_of<ModelPart>(), model_names());
  expect_same(names_of<LossPart>(), loss_names());
  expect_same(names_of<DataPart>(), format_names());
  expect_same(names_of<OptimizerPart>(), optimizer_names());
  expect_same(names_of<SchedulePart>(), rate_schedule_names());
  expect_same(names_of<PipelinePart>(), pipeline_schedule_names());
  // What GPUs have is no transport but a group of their library.
  expect_same(names_where<TransportPart>([](const TransportPart& part) { return !part.gpu; }),
              transport_names());

  // Models without sizes that must go together have no rules.
  for (const std::string& name : ruled_models())
    EXPECT_EQ(part_named<ModelPart>(name).name, name) << "no model is called so";
}

TEST(Parts, GeneratedDataTellsTheTruthThatItsRowOffers) {
  for (const DataPart& part : parts<DataPart>())
    if (part.generated)
      EXPECT_EQ(open_data(with("data.kind", part.name)).truth != nullptr,
                part.baseline == BaselineKind::kTruth)
          << part.name;
}

TEST(Parts, EveryOptimizerIsMadeAndIsAsItsRowSays) {
  for (const OptimizerPart& part : parts<OptimizerPart>()) {
    const Job job = with("train.optimizer", part.name);
    EXPECT_EQ(make_optimizer(job.train)->two_passes(), !part.sliced) << part.name;
    if (part.gpu) Updater(job, {}).kind();  // ends the program where there is none
  }
  EXPECT_FALSE(OptimizerPart{}.gpu) << "a new optimizer has no kernel for GPUs";
}

TEST(Parts, EveryScheduleHasARate) {
  for (const SchedulePart& part : parts<SchedulePart>())
    EXPECT_TRUE(std::isfinite(learning_rate(with("train.schedule", part.name).train, 3)))
        << part.name;
}

TEST(Parts, EveryPipelineScheduleDoesAllItsCells) {
  for (const PipelinePart& part : parts<PipelinePart>()) {
    const std::string name(part.name);
    const auto cells = make_schedule(name, 2, 2, 4);
    size_t many = 0;
    for (const auto& own : time_cells(name, 2, 2, cells)) many += own.size();
    EXPECT_EQ(many, size_t{4} * 2 * chunks_of(name, 2) * (part.splits ? 3 : 2)) << name;
  }
}

TEST(Parts, OptionsOfTheGeneratorBeginWithTheDefaultsOfTheirKeys) {
  PlanKeys keys = parse_job("", "job", {}).layout;
  keys.zero = 0, keys.fold = FoldKind::kLocal;  // of `auto`
  EXPECT_TRUE(keys == PlanKeys{});
  EXPECT_EQ(keys.schedule, plain_schedule());
}

TEST(Parts, EveryLossIsMade) {
  const auto make = [](std::string_view name) {
    Job job = with("model.kind", "mlp");
    job.loss.kind = name;
    const int64_t columns = targets_are_classes(job) ? job.model.classes : job.model.outputs;
    return loss_segment(job, {"output", {job.train.micro_batch_size, columns}}, data_borders(job));
  };
  for (const LossPart& part : parts<LossPart>()) EXPECT_NE(make(part.name), nullptr) << part.name;
}

TEST(Parts, MetricsAreThoseThatEvaluationsReport) {
  std::set<std::string> reported, named;
  for (const Task task : {Task::kLoss, Task::kTokens, Task::kClasses, Task::kBinary, Task::kValues,
                          Task::kReconstruct})
    for (const std::string& name : metric_names(task)) reported.insert(name);
  for (const MetricPart& part : parts<MetricPart>()) named.emplace(part.name);
  EXPECT_EQ(named, reported);
}

TEST(Parts, EveryTransportHasRates) {
  const Calibration rates = default_calibration(DeviceKind::kCpu, 2);
  for (const TransportPart& part : parts<TransportPart>())
    EXPECT_FALSE(rates.rates_of(std::string(part.name)).messages.empty()) << part.name;
  EXPECT_THROW(rates.rates_of("pigeon"), Error);
}

}  // namespace
}  // namespace tutti
