// What models refuse of a job before they are made, together with all its other faults.
#include "model/rules/rules.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "config/job.h"

namespace tutti {

namespace {

using Faults = std::vector<std::string>;
using Settings = std::vector<Setting>;

// gpt-kjv has 8 lanes, 6 heads, width 192, vocab 256, 4 layers.
Job resolved(const Settings& settings, const char* name = "gpt-kjv") {
  Job job = load_job(name, settings);
  resolve(job, {8, CodePath::kAvx512}, model_rules());
  return job;
}

Faults faults_of(const Settings& settings, const char* name = "gpt-kjv") {
  try {
    resolved(settings, name);
  } catch (const ConfigError& error) {
    return error.faults();
  }
  return {};
}

}  // namespace

TEST(ModelRules, EverySizeThatDoesNotDivideIsNamedWithTheSlicesThatWork) {
  EXPECT_EQ(faults_of({{"train.tensor_slices", "4"}}),
            Faults{"model.heads = 6 cannot be cut into train.tensor_slices = 4; these work: "
                   "tensor_slices = 1 or 2"});
  EXPECT_EQ(
      faults_of({{"train.tensor_slices", "6"}, {"model.mlp_width", "500"}, {"model.kv_heads", "3"}})
          .size(),
      4u)
      << "kv_heads, mlp_width, vocab and rows";
  EXPECT_EQ(faults_of({{"train.tensor_slices", "2"}, {"loss.label_smoothing", "0.1"}}).size(), 1u);
  EXPECT_EQ(faults_of({{"train.tensor_slices", "5"}}, "fashion-mlp").size(),
            resolved({}, "fashion-mlp").model.hidden.size());
  EXPECT_EQ(faults_of({{"train.tensor_slices", "2"}}, "fashion-mlp"), Faults{});
  EXPECT_EQ(faults_of({{"train.tensor_slices", "2"}}, "fashion-cnn"), Faults{});
}

TEST(ModelRules, HeadsCutTheWidthAndShareTheKeys) {
  EXPECT_EQ(faults_of({{"model.heads", "5"}}),
            Faults{"model.width = 192 cannot be cut into model.heads = 5: a head is a whole number "
                   "of elements"});
  EXPECT_EQ(faults_of({{"model.kv_heads", "4"}}),
            Faults{"model.heads = 6 cannot be shared out over model.kv_heads = 4"});
  EXPECT_EQ(faults_of({{"model.width", "198"}, {"model.positions", "rotary"}}),
            Faults{"model.positions = \"rotary\" but a head has 33 elements: it turns pairs of "
                   "them"});
}

TEST(ModelRules, OnlyAModelThatSaysSoMayBeTiedOrHaveGatedLayers) {
  for (const char* name : {"fashion-mlp", "fashion-cnn"}) {
    EXPECT_EQ(faults_of({{"model.tied", "true"}}, name).size(), 1u) << name;
    EXPECT_EQ(faults_of({{"model.activation", "swiglu"}}, name).size(), 1u) << name;
  }
  EXPECT_EQ(faults_of({{"model.tied", "true"}, {"model.activation", "swiglu"}}), Faults{});
}

TEST(ModelRules, FaultsOfTheModelAndOfTheRestAreNamedTogether) {
  EXPECT_EQ(faults_of({{"model.heads", "5"}, {"layout.address", "\"\""}}).size(), 2u);
  EXPECT_EQ(faults_of({{"model.channels", "[]"}}, "fashion-cnn"),
            Faults{"model.channels is empty: a cnn has a stage"});
}

TEST(ModelRules, AFaultNamesTheLineThatTheValueCameFrom) {
  Job job = parse_job("base = \"gpt-kjv\"\n[model]\nheads = 5\n", "my.toml", {});
  try {
    resolve(job, {8, CodePath::kAvx512}, model_rules());
    ADD_FAILURE() << "resolved";
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()).rfind("my.toml:3: model.width = 192 cannot", 0), 0u)
        << error.what();
  }
}

TEST(ModelRules, StagesThatTheBlocksDoNotFillAreNotProposed) {
  const Faults faults = faults_of({{"layout.ranks", "8"}, {"layout.pipeline", "3"}});
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].find("these work: pipeline = 1, 2 or 4; ranks = 6 or 9"), std::string::npos)
      << faults[0];
}

}  // namespace tutti
