#include <gtest/gtest.h>

#include "base/error.h"
#include "model/core/data_borders.h"
#include "model/core/wiring.h"

namespace tutti {

namespace {

Job job_of(const std::string& model, const std::string& data, const std::string& loss) {
  Job job;
  job.model.kind = model;
  job.model.context = 7;
  job.model.inputs = 3;
  job.model.outputs = 2;
  job.model.image = {1, 4, 5};
  job.data.kind = data;
  job.loss.kind = loss;
  job.train.micro_batch_size = 6;
  return job;
}

std::string written(const Job& job) {
  std::string text;
  for (const Border& border : data_borders(job))
    text += (text.empty() ? "" : "; ") + to_string(border);
  return text;
}

}  // namespace

TEST(Borders, FollowTheKindsOfTheModelAndOfTheLoss) {
  EXPECT_EQ(written(job_of("gpt", "text", "cross-entropy")),
            "tokens Long [6, 7]; targets Long [6, 7]");
  EXPECT_EQ(written(job_of("mlp", "points", "cross-entropy")),
            "features Float [6, 3]; targets Long [6]");
  EXPECT_EQ(written(job_of("mlp", "points", "mse")), "features Float [6, 3]; targets Float [6, 2]");
  EXPECT_EQ(written(job_of("autoencoder", "idx", "bce")),
            "features Float [6, 3]; targets Long [6]");
  EXPECT_EQ(written(job_of("cnn", "idx", "distill")),
            "images Float [6, 1, 4, 5]; targets Long [6]");
  EXPECT_EQ(written(job_of("wide-deep", "clicks", "bce")),
            "numbers Float [6, 8]; categories Long [6, 6]; targets Float [6, 2]");
}

TEST(Borders, AScriptReadsImagesOrFeaturesByTheData) {
  EXPECT_EQ(data_borders(job_of("script", "points", "mse"))[0].name, "features");
  EXPECT_EQ(data_borders(job_of("script", "images", "mse"))[0].name, "images");
  Job job = job_of("script", "numpy", "mse");
  job.model.image = {3};
  EXPECT_THROW(data_borders(job), Error);
}

TEST(Borders, ATablesColumnsAddUp) {
  Job job = job_of("wide-deep", "csv", "bce");
  job.data.columns = {"age: number", "city: category hash=64", "shape: one-hot round|square",
                      "label: target"};
  EXPECT_EQ(written(job), "numbers Float [6, 3]; categories Long [6, 1]; targets Float [6, 2]");
  job.model.kind = "mlp";
  EXPECT_EQ(data_borders(job)[0].dims, (std::vector<int64_t>{6, 3}));
  job.model.inputs = 4;
  EXPECT_THROW(data_borders(job), Error);
  job.data.columns = {"age: nubmer"};
  EXPECT_THROW(data_borders(job), ConfigError);
}

TEST(Borders, MixupAddsTheOtherTargetsAndTheirWeight) {
  Job job = job_of("cnn", "idx", "cross-entropy");
  job.augment.mixup = 0.2;
  EXPECT_EQ(written(job),
            "images Float [6, 1, 4, 5]; targets Long [6]; other_targets Long [6]; mix Float [6]");
}

}  // namespace tutti
